"""What a study expects: what each part takes, whether it is needed, and which setting is looked at."""

from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec

from scalescope.engines import ENGINES, PLAIN, Engine, engine_named
from scalescope.errors import ScalescopeError
from scalescope.estimation.estimate import PREDICTION
from scalescope.estimation.probe import groups
from scalescope.estimation.profile import launches_of
from scalescope.jobs.rank_program import starting_s
from scalescope.jobs.request import uses_placeholder
from scalescope.measurement.study import study as curves_of
from scalescope.records.prediction import Prediction
from scalescope.records.request import MeasureRequest, launch_of
from scalescope.records.run import Measurement, Run
from scalescope.records.store import load
from scalescope.records.study import StudyPart, StudyPlan
from scalescope.records.tuning import Tuning
from scalescope.simulator.grid import recommend
from scalescope.tuner.journal import RECORD

PARTS = {
    "estimate": "profile one process, probe the links, predict every number of processes and batch size",
    "measure": "launch the recommended setting on every number of processes, and correct the map by it",
    "explain": "trace a launch: where does the time of a step go?",
    "tune": "search for faster knobs while it trains",
    "check": "launch the tuned setting and the default alternately",
    "refine": "launch again what is not known within 5 %",
    "strong": "launch with the same batch divided among all processes: strong scaling",
    "engines": "launch the same with the other engines",
}
OF_SCRIPTS = {
    **PARTS,
    "estimate": "survey the script's steps and gradients, probe the links, predict other numbers of processes",
    "measure": "launch the script on every number of processes, and correct the map by it",
}
FEWEST_LAUNCHES, USUAL_LAUNCHES = 3, 5  # Of every point: in measure, and with what refine adds
PRECISION = 0.05  # Speedups that are known within this are not open any more
_PROFILE_S, _SHARE_OF_PROFILE = 18.0, 1 / 12  # The profile's time, and its part of a small budget
_PROBE_S, _SHARE_OF_PROBE = 8.0, 1 / 50
_STEPS_S = 6.0  # What the steps of a launch take about: a MODEL's end as soon as their mean is known
_FEWEST_STEPS, _MOST_STEPS = 15, 100  # Of a script
_TRACED_STEPS, _READING_S = 80, 5.0
_TUNED_STEPS = 300  # What a search usually takes
_UNKNOWN_STEP_S = 0.05  # Of a script before its first launch


class Expectations:
    """Of one study; everything that it learned is in its folder, so that a resumed one knows it."""

    def __init__(self, plan: StudyPlan, folder: Path) -> None:
        self._plan, self._request, self._folder = plan, plan.request, folder
        self._learn()

    @property
    def parts(self) -> tuple[StudyPart, ...]:
        """All parts, in their order."""
        names = OF_SCRIPTS if self._request.command else PARTS
        return tuple(StudyPart(name=name, what=what) for name, what in names.items())

    # -- what is known so far

    def _learn(self) -> None:
        """Read what finished parts left."""
        self._prediction = kept(self._folder / "estimate" / PREDICTION, Prediction)
        self._measurement = kept(self._folder / "measure" / "measurement.json", Measurement)
        self._tuning = kept(self._folder / "tune" / RECORD, Tuning)
        surveyed = kept(self._folder / "estimate" / "survey" / "measurement.json", Measurement)
        runs: list[Run] = list((self._measurement or surveyed).runs) if self._measurement or surveyed else []
        shown = [run.engine_seen for run in runs if run.engine_seen not in ("", PLAIN.name)]
        # A script may import an engine that it does not use: its ranks show the one that it does.
        self._engine: Engine = engine_named(shown[0] if shown and self._request.command else self._plan.engines[0])
        self._walls_s = [run.wall_s for run in runs]
        around_s = [max(run.wall_s - run.steps * run.mean_step_s, 0.0) for run in runs]
        self._start_s = fmean(around_s) if around_s else self._plan.start_s
        self._steps_s = [run.mean_step_s for run in runs if run.point.np > 1]

    @property
    def _target(self) -> tuple[int, int | None]:
        """Processes and batch that are measured, traced and tuned: the recommended ones, on 2 or more processes."""
        most, batches = max(self._plan.np), self._plan.batches
        if self._request.command:
            return most, batches[0] if batches else None
        found = self._prediction
        advice = recommend(found.cells, found.efficiency_goal, found.slots_per_node) if found else None
        np = advice.np if advice and advice.np > 1 else most
        if self._measurement:  # whatever the map says later, this was launched
            return np, self._measurement.batch[0]
        if advice is None:
            return np, 32 if 32 in batches else batches[len(batches) // 2]
        return np, advice.batch

    @property
    def _counts(self) -> tuple[int, ...]:
        return tuple(sorted({1, *self._plan.np, self._target[0]}))

    @property
    def _step_s(self) -> float:
        """Of several processes with the target's batch."""
        if self._steps_s:
            return median(self._steps_s)
        np, batch = self._target
        cells = self._prediction.cells if self._prediction else ()
        found = [cell.step_s for cell in cells if (cell.np, cell.batch) == (np, batch)]
        return found[0] if found else self._plan.sample_s * (batch or 1) or _UNKNOWN_STEP_S

    def _launch_s(self, steps_s: float | None = None) -> float:
        """One launch, with steps of the usual time or of this one."""
        if self._walls_s and steps_s is None:
            return fmean(self._walls_s)
        usual = min(_MOST_STEPS * self._step_s, max(_STEPS_S, _FEWEST_STEPS * self._step_s))
        return self._start_s + (usual if steps_s is None else steps_s)

    @property
    def _engines(self) -> tuple[str, ...]:
        """To launch with; of a script as asked, or the one that its ranks showed where it looks like another."""
        if not self._request.command:
            return self._plan.engines[:1]
        looks_like = self._engine.name == self._plan.engines[0] or self._engine.name not in ENGINES
        return self._request.engines if looks_like else (self._engine.name,)

    # -- what a part takes

    def seconds(self, part: str) -> float:
        """What a part is expected to take, by what is known now."""
        many, start_s = max(self._counts), self._start_s
        probes = len(groups("gloo", many, self._request.hosts))
        probe_s = probes * (self._probe_s + starting_s(many))
        if part == "estimate" and self._request.command:
            return 2 * max(len(self._plan.batches), 1) * self._launch_s() + probe_s
        if part == "estimate":
            return self._profile_s + launches_of(self._profile_s) * starting_s(many) + probe_s
        alone, several = 1 + (not self._request.command), len(self._counts) - 1  # a MODEL also without an engine
        if part == "measure":
            return (alone + several) * FEWEST_LAUNCHES * self._launch_s() + start_s / 2
        if part == "explain":
            return self._launch_s(_TRACED_STEPS * self._step_s) + start_s / 2 + _READING_S
        if part == "tune":
            return self._launch_s(_TUNED_STEPS * self._step_s) + start_s / 2
        if part == "check":
            return 2 * FEWEST_LAUNCHES * self._launch_s() + start_s
        if part == "refine":
            return (alone + several) * (USUAL_LAUNCHES - FEWEST_LAUNCHES) * self._launch_s()
        if part == "strong":
            return several * FEWEST_LAUNCHES * self._launch_s()
        scalings = len(self._measurement.scaling) if self._measurement else 1
        others = len(self._plan.engines) - 1
        return others * (1 + several * scalings) * FEWEST_LAUNCHES * self._launch_s()

    @property
    def _profile_s(self) -> float:
        return min(_PROFILE_S, max(self._request.budget_s * _SHARE_OF_PROFILE, 3.0))

    @property
    def _probe_s(self) -> float:
        return min(_PROBE_S, max(self._request.budget_s * _SHARE_OF_PROBE, 1.0))

    def _measured(self, *, folder: str = "measure", **changes: Any) -> MeasureRequest:
        """The target's batch on every number of processes."""
        request, batch = self._request, self._target[1]
        usual = MeasureRequest(
            **launch_of(request),
            np=self._counts,
            batch=() if batch is None else (batch,),
            scaling=("weak",),
            engines=self._engines,
            threads_per_rank=self._plan.threads_per_rank,
            steps=request.steps or (self._steps_of_script if request.command else None),
            launches=FEWEST_LAUNCHES,
            folder=str(self._folder / folder),
        )
        return msgspec.structs.replace(usual, **changes)

    @property
    def _steps_of_script(self) -> int:
        return min(max(round(_STEPS_S / self._step_s), 2 * _FEWEST_STEPS), _MOST_STEPS)

    def skip_reason(self, part: str) -> str:
        """Why a part has nothing to tell; empty: it has."""
        if part in ("tune", "check") and not self._engine.is_tuned:
            return f"{self._engine.title} {self._engine.why_not_tuned}"
        if part == "check" and self._tuning:
            return "" if self._tuning.decision == "use" else "the default is kept"
        if part == "refine" and self._measurement:
            return "" if _is_open(self._measurement) else "every steady speedup is known within 5 %"
        if part == "strong":
            return self._no_strong_scaling()
        if part == "engines" and len(self._plan.engines) < 2:
            return "a script has one engine" if self._request.command else "no other engine is asked for or installed"
        return ""

    def _no_strong_scaling(self) -> str:
        batch = self._target[1]
        if self._request.command and not uses_placeholder(self._request.command, "batch", "global_batch"):
            return "the command does not take its batch from {batch}"
        if batch is None or any(batch % count for count in self._counts):
            return f"batch {batch} cannot be divided among {' and '.join(map(str, self._counts))} processes"
        return ""


def _is_open(measurement: Measurement) -> bool:
    """Whether a steady speedup is not known within the precision."""
    found = [
        point.speedup.get("steady") for curve in curves_of(measurement).curves for point in curve.points if point.np > 1
    ]
    return any(
        each is not None and (each.interval == "range" or (each.high / each.low) ** 0.5 - 1 > PRECISION)
        for each in found
    )


def kept(path: Path, record_type: type[Any]) -> Any:
    """A record that an earlier part left; None where there is none that can be read."""
    try:
        return load(path, record_type) if path.is_file() else None
    except ScalescopeError:
        return None
