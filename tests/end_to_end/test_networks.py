"""Captures over two hosts: which network carried the messages, and whether a faster one was there; clocks aligned."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine
from hosts import Lab


def explained(lab: Lab, folder: Path, *words: str, env: dict[str, str]) -> dict[str, Any]:
    """The JSON of explain, of two ranks on two hosts."""
    folder.mkdir()
    settings = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    launch = ("--np", "2", "--hosts", "h1:1,h2:1", "--ssh", str(lab.ssh), "--json", "-o", "out", *settings)
    command = CommandLine(folder).words("explain", *words, *launch)
    done = lab.run("h1", command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


MODEL = ("mlp", "--model-arg", "width=256", "--batch", "8", "--engine", "ddp", "--steps", "60")


@pytest.mark.alone
def test_messages_over_the_slow_one_of_two_networks_are_found_and_what_the_fast_one_gains(hosts, tmp_path) -> None:
    """Then launched over the faster one: messages take as much less time as the links were timed to be faster."""
    lab = hosts(2, rate="50mbit", second="500mbit")
    slow = explained(lab, tmp_path / "slow", *MODEL, env={"GLOO_SOCKET_IFNAME": "eth0"})
    links = {link["interface"]: link["measured_bits_per_s"] for link in slow["network"]["links"]}
    assert (slow["network"]["transport"], slow["network"]["interfaces"]) == ("tcp", ["eth0"])
    assert 3 < links["eth1"] / links["eth0"] < 30, links
    (finding,) = [each for each in slow["findings"] if each["id"] == "slow_network"]
    assert finding["change"] == "GLOO_SOCKET_IFNAME=eth1, for every rank."
    assert finding["gain_from"] == "replay"
    assert slow["clocks"][1]["pairs"] >= 10, "one in every captured step at least"
    (traces,) = (tmp_path / "slow" / "out" / "traces").iterdir()
    report = CommandLine(tmp_path)("explain", str(traces), "--details").stdout
    assert "gloo over TCP on eth0 (2 nodes)" in report
    assert "eth1 (10.79.0.0/24): " in report
    assert slow["accounting"]["exposed_communication"] > 0.3
    fast = explained(lab, tmp_path / "fast", *MODEL, env={"GLOO_SOCKET_IFNAME": "eth1"})
    assert fast["network"]["interfaces"] == ["eth1"]
    assert [each["id"] for each in fast["findings"] if each["id"] == "slow_network"] == []
    transfers = [found["transfers"][0] for found in (slow, fast)]
    assert transfers[0]["bytes"] == transfers[1]["bytes"]
    sooner = transfers[0]["seconds"] / transfers[1]["seconds"]
    steps = slow["step_s"] / fast["step_s"]
    print(f"links {links['eth1'] / links['eth0']:.1f}x, transfers {sooner:.1f}x, steps {steps:.1f}x, {finding['gain']}")
    assert 1 / 3 < sooner / (links["eth1"] / links["eth0"]) < 3
    assert 1 / 4 < (1 + finding["gain"]) / steps < 4, "the machine may be busier in one of them"
