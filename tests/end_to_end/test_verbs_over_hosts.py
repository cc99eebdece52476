"""probe, estimate --verify, explain and tune over two hosts and inside a Slurm allocation of two nodes."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine
from scalescope.jobs.rank_log import read_rank_logs
from scalescope.records.cluster_file import load_cluster

SMALL = ("mlp", "--model-arg", "width=64")
BUCKETS = ("mlp", "--model-arg", "width=512", "--model-arg", "features=64", "--batch", "4")
SHORT = ("--warmup-samples", "1", "--steps-per-sample", "4", "--max-samples", "2", "--steps", "100")
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def over_hosts(hosts, tmp_path: Path) -> Run:
    """A verb whose ranks run on h1 and h2; its JSON."""
    lab = hosts(2, rate="")  # no test of this file speaks of speed

    def run(*words: str) -> dict[str, Any]:
        command = CommandLine(tmp_path).words(*words, "--hosts", "h1:1,h2:1", "--ssh", str(lab.ssh), "--json")
        done = lab.run("h1", command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def in_slurm(slurm, tmp_path: Path) -> Run:
    """A verb inside an allocation of two nodes; its JSON."""

    def run(*words: str) -> dict[str, Any]:
        command = CommandLine(tmp_path).words(*words, "--json")
        done = slurm.allocate(
            2, command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    return run


def hosts_of(folder: Path) -> list[str]:
    return [log.host for log in read_rank_logs(folder)]


def launches_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("verify-np2/launches/*"))


def test_a_map_of_two_hosts_is_probed_and_checked_on_them(over_hosts: Run, tmp_path: Path) -> None:
    asked = ("--np", "1,2", "--batch", "8", "--seconds", "2", "--verify", "1", "--launches", "1", "-o", "out")
    found = over_hosts("estimate", *SMALL, *asked)
    cluster = load_cluster(tmp_path / "out" / "cluster.toml")
    assert (cluster.nodes, cluster.slots_per_node) == (2, 1)
    assert {costs.nodes for costs in cluster.costs} == {2}
    (check,) = found["checks"]
    assert (check["np"], check["batch"]) == (2, 8)
    assert check["measured_s"] > 0
    (launch,) = launches_in(tmp_path / "out")
    assert hosts_of(launch) == ["h1", "h2"]


def test_a_cluster_is_probed_and_its_map_checked_inside_slurm(in_slurm: Run, tmp_path: Path) -> None:
    in_slurm("probe", "--slots", "1", "--seconds", "1", "-o", "links")
    cluster = load_cluster(tmp_path / "links" / "cluster.toml")
    assert (cluster.name, cluster.nodes, cluster.slots_per_node) == ("n1,n2", 2, 1)
    assert {(costs.ranks, costs.nodes) for costs in cluster.costs} == {(2, 2)}
    asked = ("--np", "1,2", "--batch", "8", "--seconds", "2", "--verify", "1", "--launches", "1", "-o", "out")
    found = in_slurm("estimate", *SMALL, *asked, "--cluster", "links/cluster.toml", "--per-node", "1")
    assert [(check["np"], check["batch"]) for check in found["checks"]] == [(2, 8)]
    (launch,) = launches_in(tmp_path / "out")
    assert hosts_of(launch) == ["n1", "n2"]


def test_traces_captured_by_srun_have_one_clock_and_their_network(in_slurm: Run) -> None:
    words = ("--engine", "ddp", "--launcher", "srun", "--np", "2", "--hosts", "n1:1,n2:1", "--steps", "60")
    found = in_slurm("explain", *BUCKETS, *words, "-o", "out")
    assert found["ranks"] == 2
    assert found["steps"] >= 10
    (clock,) = [clock for clock in found["clocks"] if clock["rank"] == 1]
    assert clock["pairs"] >= 10
    assert clock["residual_s"] < found["step_s"]
    assert (found["network"]["interfaces"], found["network"]["nodes"]) == (["eth0"], 2)
    (link,) = found["network"]["links"]
    assert (link["interface"], link["measured_bits_per_s"]) == ("eth0", 0), "there is nothing to compare it with"
    assert "slow_network" not in [finding["id"] for finding in found["findings"]]


def test_ddp_is_tuned_while_it_trains_over_two_hosts(over_hosts: Run, tmp_path: Path) -> None:
    found = over_hosts("tune", *BUCKETS, "--np", "2", *SHORT, "-o", "out")
    assert found["decision"] in ("use", "keep_default", "undecided")
    assert found["samples"] >= 2
    assert hosts_of(tmp_path / "out" / "training") == ["h1", "h2"]


def test_ddp_is_tuned_while_it_trains_by_srun(in_slurm: Run, tmp_path: Path) -> None:
    found = in_slurm("tune", *BUCKETS, "--np", "2", "--launcher", "srun", "--hosts", "n1:1,n2:1", *SHORT, "-o", "out")
    assert found["decision"] in ("use", "keep_default", "undecided")
    assert found["samples"] >= 2
    assert hosts_of(tmp_path / "out" / "training") == ["n1", "n2"]
