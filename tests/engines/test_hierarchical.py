"""Sums inside hosts, between hosts and inside again are the sums over all ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalescope.agent import halves

pytestmark = pytest.mark.launches


@pytest.fixture(scope="module")
def found(scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of four ranks on two pretended hosts saw, once for all tests."""
    folder = tmp_path_factory.mktemp("hierarchical")
    words = [sys.executable, str(scripts / "hierarchical_cases.py"), str(halves.__file__), str(folder)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(4)]


def test_sums_are_exact_for_every_size_kind_of_number_and_order_of_ranks(found: list[dict[str, Any]]) -> None:
    assert [rank["shape"] for rank in found] == [[2, 2]] * 4
    assert [rank["wrong sums"] for rank in found] == [[]] * 4


def test_many_buckets_on_their_way_do_not_mix(found: list[dict[str, Any]]) -> None:
    assert [rank["wrong means"] for rank in found] == [[]] * 4


def test_a_training_that_switches_it_on_and_off_stays_close_and_alike_on_all_ranks(found: list[dict[str, Any]]) -> None:
    errors = found[0]["errors"]
    assert len(errors) == 9
    assert sum("[True, False, True]" in case for case in errors) == 3
    assert max(errors.values()) < 1e-5
    assert any(error > 0 for error in errors.values())
    assert [rank["ranks differ"] for rank in found] == [[]] * 4


def test_groups_are_made_once(found: list[dict[str, Any]]) -> None:
    assert all(rank["prepared once"] for rank in found)


def test_where_there_is_no_hierarchy_it_says_why(found: list[dict[str, Any]]) -> None:
    why_not = found[0]["why not"]
    assert "one host" in why_not["one host"]
    assert "one rank" in why_not["one rank each"]
    assert "(1, 3)" in why_not["unequal"]
    state, warned = found[0]["wrapped on one host"]
    assert not state["hierarchical_allreduce"]
    assert state["first_bucket_mb"] == 2
    assert warned == ["no hierarchical allreduce: all ranks are on one host"]


def test_an_error_in_a_phase_reaches_the_backward(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert "planted" in rank["failed backward"]
        assert "planted" in rank["failed allreduce"]
