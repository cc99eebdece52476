"""A setting that was decided on earlier meets the default again."""

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scalescope.agent.control_group import DIRECTIVE, REPORTS
from scalescope.api import Silent
from scalescope.api.tune_request import tune_request
from scalescope.errors import UsageError
from scalescope.records.tuning import Gain, TuneRequest, Tuning, TuningCost
from scalescope.tuner import remembered
from scalescope.tuner.online import OnlineSearch

Truth = Callable[[dict, int], tuple[float, int]]  # Seconds and samples of a step, by knobs and number of the step


class Ranks(threading.Thread):
    """A training at the other end of the controller's files, whose steps take as long as is said."""

    def __init__(self, folder: Path, truth: Truth, steps: int) -> None:
        super().__init__(daemon=True)
        self._folder, self._truth, self._left = folder, truth, steps
        self._values: dict = {}
        self._rng, self._made, self._clock_ns = np.random.default_rng(1), 0, 0
        self.switches: list[tuple[int, dict]] = []
        self.over = threading.Event()

    def run(self) -> None:
        self._say("hello", engine="ddp", world_size=2, hosts=["a", "a"], backend="gloo")
        number = 0
        while self._left > 0:
            path = self._folder / DIRECTIVE.format(number)
            if not path.exists():
                time.sleep(0.001)
                continue
            directive = json.loads(path.read_text())
            number += 1
            if directive["kind"] == "free":
                self._left = 0
            elif directive["kind"] == "survey":
                self._say("survey", survey={})
            elif directive["kind"] == "warmup":
                self._steps(directive["steps"])
            elif directive["kind"] == "sample":
                self._sample(directive)
        self._say("end", steps=self._made)
        self.over.set()

    def _steps(self, count: int) -> list[tuple[int, int]]:
        made = []
        for _ in range(count):
            seconds, samples = self._truth(self._values, self._made)
            made.append((int(1e9 * seconds * math.exp(self._rng.normal(0, 0.01))), samples))
            self._clock_ns += made[-1][0]
            self._made += 1
        self._left -= count
        return made

    def _sample(self, directive: dict) -> None:
        began = self._clock_ns + 1
        if directive["values"] != self._values:
            self._values = directive["values"]
            self.switches.append((self._made, self._values))
        self._steps(directive["discard"])
        steps = self._steps(directive["steps"])
        self._say(
            "sample",
            id=directive["id"],
            step_ns=[step[0] for step in steps],
            samples=[step[1] for step in steps],
            began_ns=began,
            ended_ns=self._clock_ns + 1,
            discarded=directive["discard"],
        )

    def _say(self, kind: str, **fields: object) -> None:
        with open(self._folder / REPORTS, "a") as file:
            file.write(json.dumps({"kind": kind, **fields}) + "\n")


def tuned(folder: Path, truth: Truth, steps: int, request: TuneRequest, kind: type[OnlineSearch]) -> tuple:
    training = folder / "training"
    training.mkdir()
    ranks = Ranks(training, truth, steps)
    search = kind(request, folder, training, {}, Silent(), ranks.over.is_set)
    ranks.start()
    search.run()
    return search.found(), ranks


def until_the_links_change(values: dict, step: int) -> tuple[float, int]:
    """Small buckets are faster, until the links are slow: then large ones are."""
    cap = float(values.get("bucket_cap_mb", 25.0))
    octaves = math.log2(25.0 / cap)
    return (0.1 * (1 - 0.06 * max(min(octaves, 4), 0)), 32) if step < 1500 else (0.2 * (1 + 0.1 * max(octaves, 0)), 32)


def test_a_setting_to_confirm_meets_the_default_without_a_search(tmp_path: Path) -> None:
    request = TuneRequest(command=("python", "train.py"), confirm={"bucket_cap_mb": 3.0, "first_bucket_mb": 1.0})
    found, _ = tuned(tmp_path, until_the_links_change, 1000, request, OnlineSearch)
    assert {sample.phase for sample in found.samples[1:]} == {"confirm"}
    assert (found.decision, found.values) == ("use", request.confirm)


def decided(**changes: object) -> Tuning:
    fields: dict = {
        "what": "train.py",
        "engine": "ddp",
        "np": 2,
        "method": "online",
        "created": "",
        "scalescope": "",
        "knobs": (),
        "decision": "use",
        "values": {"bucket_cap_mb": 2.0},
        "gain": Gain(value=0.1, low=0.05, high=0.15, pairs=5),
        "samples": (),
        "cost": TuningCost(search_steps=1, confirm_steps=1, seconds=1.0, lost_s=0.0),
    }
    return Tuning(**{**fields, **changes})


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return remembered.file()


def test_the_last_decision_is_remembered_per_training_engine_hosts_and_np(kept: Path) -> None:
    sampled = (load_sample(),)
    request = TuneRequest(command=("python", "train.py"), np=2)
    assert remembered.recall(request, "ddp") is None
    assert remembered.remember(request, decided(samples=sampled)) == ""
    with open(kept, "a") as file:
        file.write("damaged\n")
    found = remembered.recall(request, "ddp")
    assert found is not None
    assert found.values == {"bucket_cap_mb": 2.0}
    for other in ({"np": 4}, {"command": ("python", "other.py")}, {"hosts": "a:1,b:1"}, {"batch": 8}):
        told = tune_request(**{"command": ("python", "train.py"), "np": 2, **other})
        assert remembered.recall(told, "ddp") is None
    assert remembered.recall(request, "horovod") is None
    remembered.remember(request, decided(samples=sampled, decision="undecided", values={}))
    assert remembered.recall(request, "ddp") is not None, "what is not decided changes nothing"
    remembered.remember(request, decided(samples=sampled, decision="keep_default", values={}))
    assert remembered.recall(request, "ddp") is None


def load_sample():
    from scalescope.records.tuning import Sample

    return Sample(index=0, phase="default", values={}, step_s=0.1)


def test_start_from_last_asks_to_confirm_what_is_remembered(kept: Path) -> None:
    command = ("python", "train.py")
    with pytest.raises(UsageError, match="nothing is remembered"):
        tune_request(command=command, np=2, start_from="last")
    remembered.remember(TuneRequest(command=command, np=2), decided(samples=(load_sample(),)))
    request = tune_request(command=command, np=2, start_from="last")
    assert (request.confirm, request.start_from) == ({"bucket_cap_mb": 2.0}, None)
    with pytest.raises(UsageError, match="it is fixed at 4"):
        tune_request(command=command, np=2, start_from="last", hold={"bucket_cap_mb": 4})
