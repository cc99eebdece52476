"""What a rank tells about its host and its network; files of drivers that are not here are made."""

import json
import os
from pathlib import Path

import pytest

from scalescope.agent import network
from scalescope.agent.recorder import batch_job, gpu_models, machine
from scalescope.measurement.network import network_of


def test_a_host_tells_its_cpu_and_cores_and_the_models_of_its_gpus(tmp_path: Path) -> None:
    found = machine()
    assert found["cores"] == os.cpu_count()
    assert found["cpu"] in Path("/proc/cpuinfo").read_text()
    for name in ("0000:1b:00.0", "0000:04:00.0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "information").write_text(f"Model: \t\t NVIDIA H100 {name[5:7]}\nIRQ:   \t\t 17\n")
    assert gpu_models(str(tmp_path)) == ["NVIDIA H100 04", "NVIDIA H100 1b"]
    assert gpu_models(str(tmp_path / "none")) == []


def test_the_batch_job_is_named_with_its_system(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"):
        monkeypatch.delenv(name, raising=False)
    assert batch_job() == ""
    monkeypatch.setenv("PBS_JOBID", "17.server")
    assert batch_job() == "pbs 17.server"
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert batch_job() == "slurm 4711"


def test_ports_of_infiniband_and_roce_that_are_up_are_told_with_their_rates(tmp_path: Path) -> None:
    ports = [
        ("mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand"),
        ("mlx5_1", "4: ACTIVE", "100 Gb/sec", "Ethernet"),
    ]
    for device, state, rate, layer in (*ports, ("mlx5_2", "1: DOWN", "10 Gb/sec", "InfiniBand")):
        place = tmp_path / device / "ports" / "1"
        place.mkdir(parents=True)
        for name, text in (("state", state), ("rate", rate), ("link_layer", layer)):
            (place / name).write_text(f"{text}\n")
    assert network.devices(str(tmp_path)) == [
        {"name": "mlx5_0:1", "kind": "IB", "bits_per_s": 400e9},
        {"name": "mlx5_1:1", "kind": "RoCE", "bits_per_s": 100e9},
    ]
    assert network.devices(str(tmp_path / "none")) == []


def test_nccl_is_asked_for_its_log_only_where_the_user_said_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for said in ({"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG_FILE": "/x"}):
        with monkeypatch.context() as patch:
            for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE"):
                patch.delenv(name, raising=False)
            for name, value in said.items():
                patch.setenv(name, value)
            network.ask_nccl(str(tmp_path))
            assert {name: os.environ[name] for name in os.environ if name.startswith("NCCL_DEBUG")} == said
    monkeypatch.setenv("NCCL_DEBUG", "")
    monkeypatch.delenv("NCCL_DEBUG")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "")
    monkeypatch.delenv("NCCL_DEBUG_FILE")
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=WARN\n")
    network.ask_nccl(str(tmp_path))
    assert "NCCL_DEBUG" not in os.environ
    (tmp_path / ".nccl.conf").unlink()
    network.ask_nccl(str(tmp_path))
    assert os.environ.pop("NCCL_DEBUG") == "INFO"
    assert os.environ.pop("NCCL_DEBUG_FILE") == f"{tmp_path}/nccl-%h-%p.log"


def test_what_ranks_of_two_hosts_wrote_is_put_together_with_the_log_of_nccl(tmp_path: Path) -> None:
    def interface(name: str, address: str, sent: int) -> dict[str, object]:
        return {"name": name, "address": address, "network": address[:4] + "0.0/24", "sent_bytes": sent}

    for rank in (0, 1):
        interfaces = [
            interface("lo", "127.0.0.1", 7),
            interface("ib0", f"10.1.0.{rank}", 10),
            interface("e0", f"10.2.0.{rank}", 99),
        ]
        told = {
            "host": f"n{rank}",
            "pid": 10 + rank,
            "rank": rank,
            "interfaces": interfaces,
            "nccl_log": f"{tmp_path}/mine-%h.%p",
        }
        (tmp_path / f"network-rank{rank}.json").write_text(json.dumps({**told, "settings": {"NCCL_NET": "Socket"}}))
    (tmp_path / "network-rank2.json").write_text('{"torn')
    logs = tmp_path / "launch"
    logs.mkdir()
    for path in tmp_path.glob("network-*"):
        path.rename(logs / path.name)
    (tmp_path / "mine-n1.11").write_text("n1:11:11 [0] NCCL INFO NET/Socket : Using [0]e0:10.2.0.1<0>\n")
    found = network_of(logs, "nccl", None)
    assert found
    assert (found.transport, found.interfaces, found.nodes) == ("Socket", ("e0",), 2)
    assert [(link.interface, link.sent_bytes, link.measured_bits_per_s) for link in found.links] == [
        ("e0", 99, 0.0),
        ("ib0", 10, 0.0),
    ]
    gloo = network_of(logs, "gloo", lambda host, program, arguments: "[4e7, 4e8]")
    assert gloo
    assert (gloo.transport, gloo.interfaces) == ("tcp", ("e0",))
    assert [link.measured_bits_per_s for link in gloo.links] == [4e7, 4e8]
    assert network_of(tmp_path, "gloo", None) is None
