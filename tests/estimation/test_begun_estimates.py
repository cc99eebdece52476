"""Estimates that were interrupted: which is continued, and in which folder."""

import os
import time
from pathlib import Path

import msgspec
import pytest

from scalescope.errors import UsageError
from scalescope.estimation.begun import is_begun, unfinished_estimate
from scalescope.measurement.fingerprint import fingerprint_here
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import EstimatePlan, EstimateRequest
from scalescope.records.store import save


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def estimate(seconds: float = 35.0) -> EstimatePlan:
    asked = EstimateRequest(workload=WorkloadSpec(model="cnn"), seconds=seconds)
    return EstimatePlan(request=asked, fingerprint=fingerprint_here((), "cpu"))


def test_the_newest_estimate_of_the_last_hour_is_continued(here: Path) -> None:
    assert unfinished_estimate(estimate()) == ""
    for name in ("estimate-1", "estimate-2", "estimate-3"):
        (here / "results" / name).mkdir(parents=True)
    save(estimate(), here / "results" / "estimate-1" / "plan.json")
    save(estimate(), here / "results" / "estimate-2" / "plan.json")
    save(estimate(20.0), here / "results" / "estimate-3" / "plan.json")
    assert unfinished_estimate(estimate()) == "results/estimate-2"
    long_ago = time.time() - 3700
    os.utime(here / "results" / "estimate-2" / "plan.json", (long_ago, long_ago))
    assert unfinished_estimate(estimate()) == "results/estimate-1"
    recently = time.time() - 3000
    os.utime(here / "results" / "estimate-1" / "plan.json", (recently, recently))
    assert unfinished_estimate(estimate()) == "results/estimate-1"
    (here / "results" / "estimate-1" / "plan.json").write_text("damaged")
    assert unfinished_estimate(estimate()) == ""


def test_an_estimate_is_begun_in_its_own_folder_only(here: Path) -> None:
    assert not is_begun(here, estimate())
    save(estimate(), here / "plan.json")
    assert is_begun(here, estimate())
    with pytest.raises(UsageError, match="already holds an estimate: choose another folder with -o, or remove this"):
        is_begun(here, estimate(20.0))
    there = msgspec.structs.replace(estimate().fingerprint, host="another")  # a job that was submitted again
    save(msgspec.structs.replace(estimate(), fingerprint=there), here / "plan.json")
    assert is_begun(here, estimate())
    other = msgspec.structs.replace(there, cores=there.cores + 1)
    save(msgspec.structs.replace(estimate(), fingerprint=other), here / "plan.json")
    with pytest.raises(UsageError, match="already holds an estimate"):
        is_begun(here, estimate())
