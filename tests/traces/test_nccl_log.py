"""NCCL's log: which network it took, and whether a better one was there."""

from pathlib import Path

import msgspec
import pytest

from scalescope.diagnosis.sources import explain
from scalescope.errors import UsageError
from scalescope.records.explanation import Explanation, Network
from scalescope.records.scaling import Scaling
from scalescope.show import document_of
from scalescope.traces.nccl_log import read_nccl_log

LOGS = Path(__file__).parents[1] / "data" / "nccl"


def read(name: str) -> Network:
    found = read_nccl_log((LOGS / name).read_text().splitlines())
    assert found
    return found


def explained(*names: str) -> Explanation:
    found = explain([LOGS / name for name in names])
    assert isinstance(found, Explanation)
    return found


@pytest.mark.parametrize(
    ("name", "transport", "interfaces", "devices"),
    [
        ("socket-without-device.log", "Socket", ("ens3",), ()),
        ("socket-hca-named.log", "Socket", ("eth0",), ()),
        ("socket-on-ib.log", "Socket", ("ibp12s0", "ibp18s0"), ()),
        ("socket-asked-for.log", "Socket", ("enp225s0f1",), ("mlx5_0:1", "mlx5_1:1")),
        ("socket-without-library.log", "Socket", ("eth0",), ()),
        ("roce.log", "IBext_v8", (), ("mlx5_2:1", "mlx5_3:1", "mlx5_0:1", "mlx5_1:1")),
        ("infiniband.log", "IB", (), ("mlx5_3:1", "mlx5_2:1")),
    ],
)
def test_transport_interfaces_and_devices_are_read(
    name: str, transport: str, interfaces: tuple[str, ...], devices: tuple[str, ...]
) -> None:
    found = read(name)
    assert (found.transport, found.interfaces) == (transport, interfaces)
    assert tuple(device.name for device in found.devices) == devices


def test_settings_and_what_is_missing_are_read() -> None:
    assert read("socket-on-ib.log").no_device
    assert read("socket-asked-for.log").settings == {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "en"}
    assert read("socket-without-library.log").no_verbs
    assert read_nccl_log(["epoch 1", "NCCL version 2.4.8"]) is None


@pytest.mark.parametrize(
    ("name", "why", "change"),
    [
        (
            "socket-hca-named.log",
            "NCCL_IB_HCA asks for InfiniBand",
            "unset NCCL_IB_HCA=mlx5_0:1,mlx5_1:1, or name what ibv_devices lists",
        ),
        ("socket-on-ib.log", "InfiniBand is there", "NCCL_NET=IB, so that NCCL says why it cannot"),
        ("socket-asked-for.log", "InfiniBand is there", "unset NCCL_NET, which asks for sockets."),
    ],
)
def test_sockets_next_to_infiniband_are_found_with_what_to_set(name: str, why: str, change: str) -> None:
    (finding,) = explained(name).findings
    assert finding.sentence == f"NCCL talks over sockets although {why}."
    assert finding.change.startswith(change)
    assert finding.evidence["sockets on"]
    assert finding.gain is None, "a log has no steps"
    told = document_of(explained(name))
    assert told.answer.startswith("NCCL over sockets on ")
    assert told.answer.endswith(finding.sentence)
    assert told.json()["network"]["transport"] == "Socket"
    assert told.do == finding.change


@pytest.mark.parametrize(
    "name", ["socket-without-device.log", "socket-without-library.log", "roce.log", "infiniband.log"]
)
def test_nothing_is_found_where_no_other_network_is_known(name: str) -> None:
    assert explained(name).findings == ()


def test_what_turns_infiniband_off_is_the_first_thing_to_change(tmp_path: Path) -> None:
    lines = (LOGS / "socket-on-ib.log").read_text()
    (tmp_path / "off.log").write_text(lines + "n:1:1 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n")
    found = explain([tmp_path / "off.log"])
    assert isinstance(found, Explanation)
    assert found.findings[0].change == "NCCL_IB_DISABLE=0 in the environment of every rank, or unset it."


def test_a_log_of_nccl_goes_with_traces_of_its_job() -> None:
    traces = LOGS.parent / "traces" / "kineto" / "nccl_mixed"
    found = explain([traces, LOGS / "socket-asked-for.log"])
    assert isinstance(found, Explanation)
    assert found.network
    assert found.network.transport == "Socket"
    (finding,) = [each for each in found.findings if each.id == "slow_network"]
    assert finding.gain_from in ("replay", "accounting", "")


def test_a_training_log_with_lines_of_nccl_tells_its_epochs_and_the_network(tmp_path: Path) -> None:
    log = LOGS.parents[2] / "examples" / "data" / "cifar10-2gpus.log"
    (tmp_path / "train.log").write_text((LOGS / "socket-on-ib.log").read_text() + log.read_text())
    found = explain([tmp_path / "train.log"], np=[2])
    assert isinstance(found, Scaling)
    assert found.curves[0].points[0].np == 2
    assert found.findings[-1].startswith("NCCL talks over sockets although InfiniBand is there. NCCL_NET=IB")


def test_another_text_is_no_log_of_nccl(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("nothing\n")
    with pytest.raises(UsageError):
        explain([tmp_path / "a.log"])
    hostile = msgspec.structs.replace(read("roce.log"), settings={"NCCL_X": "\x1b[31m"}, interfaces=("\x1b[2J",))
    assert "\x1b" not in str(document_of(msgspec.structs.replace(explained("roce.log"), network=hostile)).sections)
