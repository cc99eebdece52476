"""DDP's knobs change on a live wrapper, and the training does not notice."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalescope.agent import halves
from scalescope.engines import find_engine
from scalescope.engines.base import MIB
from simulator.made import gradients, point, profile

pytestmark = pytest.mark.launches

LAYER = 2400
"""Bytes of a layer of the trained model: its weight and its bias."""


@pytest.fixture(scope="module")
def found(scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks saw, once for all tests."""
    folder = tmp_path_factory.mktemp("switch")
    words = [sys.executable, str(scripts / "switch_cases.py"), str(halves.__file__), str(folder)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first == second
    return first


def test_a_training_whose_knobs_change_ends_with_the_same_bits(found: dict[str, Any]) -> None:
    assert len(found["equal"]) > 15
    assert [case for case, equal in found["equal"].items() if not equal] == []
    assert found["differs without exchange"]


def test_buckets_change_as_if_ddp_had_been_told_at_once(found: dict[str, Any]) -> None:
    layouts = found["layouts"]
    for setting, sizes in found["layouts at once"].items():
        assert layouts[setting] == sizes
    assert layouts['{"bucket_cap_mb": 0.002}'] == [LAYER] * 6
    assert layouts['{"first_bucket_mb": 0.001}'] == [LAYER, 5 * LAYER]
    assert layouts["{}"] == [6 * LAYER]


def test_the_simulated_buckets_are_the_real_ones(found: dict[str, Any]) -> None:
    sizes = [part / MIB for _ in range(6) for part in (96, LAYER - 96)]
    model = profile(point(ready_s=tuple(map(float, range(12)))), gradients=gradients(*sizes))
    for setting, real in found["layouts"].items():
        messages = find_engine("ddp").exchange(model, json.loads(setting)).messages
        assert [message.bytes for message in messages] == real, setting


def test_a_hook_of_the_script_survives(found: dict[str, Any]) -> None:
    assert found["own hook"]
    assert found["refused"]["own hook"] == ""
    assert "hook of its own" in found["refused"]["hierarchy with own hook"]


def test_what_is_in_force_is_told_and_nothing_restores_the_original(found: dict[str, Any]) -> None:
    caps = [(round(seen["bucket_cap_mb"], 3), round(seen["first_bucket_mb"], 3)) for seen in found["seen"]]
    assert caps == [(0.002, 0.002), (25, 0.001), (25, 1), (0.01, 0.05)]
    assert all(seen["gradient_as_bucket_view"] for seen in found["seen"])
    assert found["wrapped"]["bucket_cap_mb"] == 4
    assert found["wrapped"]["first_bucket_mb"] == 0.5


def test_what_cannot_change_is_refused_in_one_line(found: dict[str, Any]) -> None:
    refused = found["refused"]
    assert refused.pop("plain") == ""
    for case, words in {
        "not DDP": "Sequential is not",
        "unused": "find_unused_parameters",
        "state": "keeps a state",
        "thawed": "frozen or thawed",
        "built in": "built-in communication hook",
        "compiled": "compiled",
        "switch": "find_unused_parameters",
        "static graph": "static_graph cannot change",
        "hierarchy not prepared": "not prepared",
        "sparse": "sparse gradients",
    }.items():
        assert words in refused[case]
        assert "\n" not in refused[case]


def test_it_works_where_scalescope_is_not_installed(found: dict[str, Any]) -> None:
    assert not found["has scalescope"]


def test_nccl_reads_its_knobs_from_variables() -> None:
    environment = find_engine("ddp").environment
    assert environment({}, named_hosts=True) == {}
    values = {"nccl_algo": "Tree", "nccl_proto": "LL128", "nccl_max_nchannels": 4, "bucket_cap_mb": 5}
    assert environment(values, named_hosts=False) == {
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_ALGO": "Tree",
        "NCCL_PROTO": "LL128",
        "NCCL_MAX_NCHANNELS": "4",
    }
