"""The parts of a study: what each is expected to take, whether it is needed, and how its verb does it.

Each part has a folder of its own, from which what an interruption left of it is resumed.
"""

import math
import sys
from collections import Counter
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec

from scalescope import host
from scalescope.diagnosis.sources import explain
from scalescope.engines import ENGINES, PLAIN, Engine, engine_named, find_engine
from scalescope.errors import ScalescopeError, UsageError, WorkFailed
from scalescope.estimation.estimate import estimate
from scalescope.estimation.probe import groups, probe_cluster
from scalescope.estimation.profile import launches_of
from scalescope.jobs.command import interpreter_of, uses_placeholder
from scalescope.jobs.folders import emptied, result_folder
from scalescope.jobs.hosts import allocated_here
from scalescope.jobs.rank_program import starting_s
from scalescope.launchers import find_launcher
from scalescope.measurement.capture import traced_run
from scalescope.measurement.scaling import is_disturbed, scaling_of
from scalescope.measurement.sweep import continue_measurement, measure
from scalescope.progress import Progress
from scalescope.records.cluster import Cluster
from scalescope.records.cluster_file import load_cluster, write_cluster
from scalescope.records.explanation import Explanation
from scalescope.records.files import CLUSTER, EXPLANATION, MEASUREMENT, PLAN, PREDICTION, PROFILE, TUNING
from scalescope.records.job import Knobs
from scalescope.records.prediction import Prediction
from scalescope.records.profile import ModelProfile
from scalescope.records.request import (
    USUAL_BATCH,
    EstimatePlan,
    EstimateRequest,
    MeasureRequest,
    ProbeRequest,
    launch_of,
)
from scalescope.records.run import Measurement, Run
from scalescope.records.scaling import Estimate
from scalescope.records.store import complete_lines, load, save
from scalescope.records.study import StudyPart, StudyPlan
from scalescope.records.tuning import TuneRequest, Tuning
from scalescope.simulator.grid import recommend
from scalescope.studies.script_map import corrected_by, map_of_script, profile_of_script
from scalescope.tuner.journal import SAMPLES
from scalescope.tuner.offline import SURVEY
from scalescope.tuner.run import resume as resume_search
from scalescope.tuner.run import tune
from scalescope.tuner.settings import THREADS, knob_texts
from scalescope.units import doublings, format_share

PRECISION = 0.05  # Speedups that are known within this are not open any more
_MOST_TUNED_STEPS = 500  # After which a script that is tuned is stopped
PARTS = {
    "estimate": "profile one process, probe the links, predict every number of processes and batch size",
    "measure": "launch the recommended setting on every number of processes, and correct the map by it",
    "explain": "trace a launch: where does the time of a step go?",
    "tune": "search for faster knobs while it trains",
    "check": "launch the tuned setting and the default alternately",
    "refine": f"launch again what is not known within {format_share(PRECISION)}, as long as there is time",
    "strong": "launch with the same batch divided among all processes: strong scaling",
    "engines": "launch the same with the other engines",
}
OF_SCRIPTS = {
    **PARTS,
    "estimate": "survey the script's steps and gradients, probe the links, predict other numbers of processes",
    "measure": "launch the script on every number of processes, and correct the map by it",
    "tune": f"search for faster knobs; a script below {_MOST_TUNED_STEPS} steps runs to its end and saves",
}
UNCORRECTED = "uncorrected.json"  # The map before its checks: launches that are added correct it anew
FEWEST_LAUNCHES, USUAL_LAUNCHES = 3, 5  # Of every point: in measure, and with what refine adds at least
_MOST_LAUNCHES = 30  # Of a point, as with measure --precision
_PROFILE_S, _SHARE_OF_PROFILE = 18.0, 1 / 12  # The profile's time, and its part of a small budget
_PROBE_S, _SHARE_OF_PROBE = 8.0, 1 / 50
_STEPS_S = 6.0  # What the steps of a launch take about: a MODEL's end as soon as their mean is known
_FEWEST_STEPS, _MOST_STEPS = 15, 100  # Of a script
_TRACED_STEPS, _READING_S = 80, 5.0
_TUNED_STEPS = 300  # What a search usually takes
_UNKNOWN_STEP_S = 0.05  # Of a script before its first launch
_SURVEYED_STEPS, _SURVEY_AFTER = 40, 10


class Parts:
    """The parts of one study; everything that they learned is in its folder, so that a resumed one knows it."""

    _progress: Progress  # Of the part that is done now

    def __init__(self, plan: StudyPlan, folder: Path) -> None:
        self._plan, self._request, self._folder = plan, plan.request, folder
        self._nothing_measured = ""  # Why measure, in this run, ended without a launch of several processes
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
        self._measurement = kept(self._folder / "measure" / MEASUREMENT, Measurement)
        self._tuning = kept(self._folder / "tune" / TUNING, Tuning)
        surveyed = kept(self._folder / "estimate" / "survey" / MEASUREMENT, Measurement)
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
        found, measured = self._prediction, self._measurement
        cells = found.cells if found else ()
        launched = {run.point.np for run in measured.runs} if measured else set()
        if max(launched, default=1) > 1:  # a map that is corrected by them may recommend what was not launched
            cells, most = tuple(cell for cell in cells if cell.np in launched), max(launched)
        advice = recommend(cells, found.efficiency_goal, found.slots_per_node) if found else None
        np = advice.np if advice and advice.np > 1 else most
        if measured:
            return np, measured.batch[0]
        if advice is None:
            return np, USUAL_BATCH if USUAL_BATCH in batches else batches[len(batches) // 2]
        return np, advice.batch

    @property
    def _counts(self) -> tuple[int, ...]:
        return tuple(sorted({1, *self._plan.np, self._target[0]}))

    @property
    def _step_s(self) -> float:
        """Seconds of a step of several processes with the target's batch."""
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
        """Seconds that a part is expected to take, by what is known now."""
        launch_s, start_s, several = self._launch_s(), self._start_s, len(self._counts) - 1
        others, scalings = len(self._plan.engines) - 1, len(self._measurement.scaling) if self._measurement else 1
        match part:
            case "estimate":
                many = max(self._counts)
                probe_s = len(groups("gloo", many, self._request.hosts)) * (self._probe_s + starting_s(many))
                if self._request.command:
                    return 2 * max(len(self._plan.batches), 1) * launch_s + probe_s
                return self._profile_s + launches_of(self._profile_s) * starting_s(many) + probe_s
            case "measure":
                return self._points * FEWEST_LAUNCHES * launch_s + start_s / 2
            case "explain":
                return self._launch_s(_TRACED_STEPS * self._step_s) + start_s / 2 + _READING_S
            case "tune":
                return self._launch_s(_TUNED_STEPS * self._step_s) + start_s / 2
            case "check":
                return 2 * FEWEST_LAUNCHES * launch_s + start_s
            case "refine":  # at least this: it goes on as long as there is time
                return sum(max(self._wanted - made, 0) for made in self._made) * launch_s
            case "strong":  # points that are added are compared with one process that is launched next to them
                return (1 + several) * FEWEST_LAUNCHES * launch_s
            case _:
                return (1 + others * (1 + several * scalings)) * FEWEST_LAUNCHES * launch_s

    def launches(self, part: str) -> int:
        """Launches of a part, at least, by what is known now."""
        several, others = len(self._counts) - 1, len(self._plan.engines) - 1
        many = max(self._counts)
        probes = len(groups("gloo", many, self._request.hosts))
        alone = 2 * max(len(self._plan.batches), 1) if self._request.command else launches_of(self._profile_s)
        return {
            "estimate": alone + probes,
            "measure": self._points * FEWEST_LAUNCHES,
            "explain": 1,
            "tune": 1,
            "check": 2 * FEWEST_LAUNCHES,
            "refine": sum(max(self._wanted - made, 0) for made in self._made),
            "strong": (1 + several) * FEWEST_LAUNCHES,
            "engines": (1 + others * (1 + several)) * FEWEST_LAUNCHES,
        }[part]

    def measured(self) -> MeasureRequest:
        """The request of measure, by what is known now."""
        return self._measured()

    @property
    def _points(self) -> int:
        """Count of the points of measure: of a MODEL also one process without an engine."""
        return len(self._counts) + (not self._request.command)

    @property
    def _made(self) -> list[int]:
        """Launches of every point that measure, and what came after it, made."""
        if self._measurement is None:
            return self._points * [FEWEST_LAUNCHES]
        return list(Counter(run.point for run in self._measurement.runs).values())

    @property
    def _wanted(self) -> int:
        """Launches of every point after refine; where most were disturbed, more than were made before."""
        most = max(self._made)
        disturbed = self._measurement is not None and is_disturbed(self._measurement.runs)
        return 2 * most + 1 if disturbed and most >= USUAL_LAUNCHES else USUAL_LAUNCHES

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
        """The reason to leave out a part that has nothing to tell; empty: it has."""
        if self._nothing_measured and part not in ("estimate", "measure"):
            return self._nothing_measured
        if part in ("tune", "check") and not self._engine.is_tuned:
            return f"{self._engine.title} {self._engine.why_not_tuned}"
        if part == "check" and self._tuning:
            return "" if self._tuning.decision == "use" else "the default is kept"
        if part == "refine" and self._measurement and not is_open(self._measurement):
            if not _speedups(self._measurement):
                return "nothing was measured on several processes"
            return f"every steady speedup is known within {format_share(PRECISION)}"
        if part == "strong":
            batch = self._target[1]
            if self._request.command and not uses_placeholder(self._request.command, "batch", "global_batch"):
                return "the command does not take its batch from {batch}"
            if batch is None or any(batch % count for count in self._counts):
                return f"batch {batch} cannot be divided among {' and '.join(map(str, self._counts))} processes"
        if part == "engines" and len(self._plan.engines) < 2:
            return "a script has one engine" if self._request.command else "no other engine is asked for or installed"
        return ""

    # -- doing a part

    def run(self, part: str, seconds: float, progress: Progress) -> None:
        """Do a part, or what an interruption left of it."""
        self._progress = progress
        if part == "measure":
            self._nothing_measured = ""
        try:
            if part == "estimate":
                (self._survey if self._request.command else self._estimate)()
            elif part == "measure":
                self._measure(seconds)
            elif part == "explain":
                asked = self._measured(folder="explain", np=(self._target[0],), trace=True)
                place = traced_run(asked, progress)
                found = explain([place])
                assert isinstance(found, Explanation)
                save(found, place / EXPLANATION)
            elif part == "tune":
                self._tune(seconds)
            elif part == "check":
                self._check()
            else:
                more: dict[str, Any] = {"launches": FEWEST_LAUNCHES}
                if part == "refine":
                    surely = self._wanted > USUAL_LAUNCHES
                    more = {"launches": self._wanted, "precision": None} if surely else {"precision": PRECISION}
                elif part == "strong":
                    more["scaling"] = ("strong", "weak")
                else:
                    more["engines"] = self._plan.engines
                continue_measurement(self._folder / "measure", {**more, "budget_s": seconds}, progress)
        except ScalescopeError as problem:
            if part == "measure":
                self._nothing_measured = self._why_nothing_measured(str(problem).partition("\n")[0])
            raise
        finally:
            self._learn()
            self._correct_map()  # After every part: a map that failed before may come after the launches

    def _why_nothing_measured(self, problem: str) -> str:
        """The reason and the log, where no launch of several processes went well; empty: one did."""
        measurement = kept(self._folder / "measure" / MEASUREMENT, Measurement)
        if measurement and any(run.point.np > 1 for run in measurement.runs):
            return ""
        failed = [each for each in (measurement.failures if measurement else ()) if each.point.np > 1]
        if not failed:
            return f"nothing was measured: {problem}"
        place = self._folder / "measure" / failed[0].folder
        log = next((place / name for name in ("rank0.out", "launcher.out") if (place / name).is_file()), place)
        return f"nothing was measured: {failed[0].point.label}: {failed[0].problem}; log: {log}"

    def _estimate(self) -> None:
        place, request = self._folder / "estimate", self._request
        plan = kept(place / PLAN, EstimatePlan)
        if plan and plan.finished:
            return
        cluster = ""
        if request.hosts:
            cluster = str(self._folder / CLUSTER)
            if not Path(cluster).exists():
                write_cluster(self._probed(self._knobs, self._folder / "probe"), Path(cluster))
        assert request.workload
        estimate(
            EstimateRequest(
                workload=request.workload,
                np=request.np,
                batch=self._plan.batches,
                engine=self._plan.engines[0],
                cluster=cluster,
                per_node=request.per_node,
                threads_per_rank=request.threads_per_rank,
                device=request.device,
                env=request.env,
                seconds=self._profile_s,
                timeout_s=request.timeout_s,
                folder=str(place),
            ),
            self._progress,
        )

    def _survey(self) -> None:
        """A script's map: one launch alone and one of all processes that the agent surveys, and the links."""
        place = self._folder / "estimate"
        with result_folder("estimate", place):
            asked = self._measured(folder="estimate/survey", launches=1)
            asked = msgspec.structs.replace(
                asked,
                np=(1, self._target[0]),
                batch=self._plan.batches,
                steps=self._request.steps or _SURVEYED_STEPS,
                env={**self._request.env, "SCALESCOPE_SURVEY": str(_SURVEY_AFTER)},
            )
            measurement = self._launched(asked, {})
            self._learn()
            if not self._engine.is_surveyed:
                raise WorkFailed(
                    f"no map: {self._engine.title} of a script cannot be modelled yet; "
                    "measure and explain show how the script scales"
                )
            found = {
                (run.point.np, run.point.batch): survey
                for run in measurement.runs
                if (survey := _decoded(place / "survey" / run.folder / SURVEY))
            }
            if not found:
                made = max((run.steps for run in measurement.runs), default=0)
                raise WorkFailed(
                    f"no map: the script was not surveyed; it made {made} steps and the first {_SURVEY_AFTER} warm up"
                )
            profile = profile_of_script(self._request.what, found)
            save(profile, place / PROFILE)
            knobs = self._knobs
            if not (place / CLUSTER).exists():
                write_cluster(self._probed(knobs, place / "probe", profile), place / CLUSTER)
            cluster = load_cluster(place / CLUSTER)
            counts = self._request.np or doublings(cluster.slots)
            save(map_of_script(profile, cluster, knobs, counts), place / PREDICTION)

    @property
    def _knobs(self) -> Knobs:
        """Knobs of the map: as the engine runs here without any being set."""
        engine = self._engine
        python = interpreter_of(self._request.command, sys.executable) if self._request.command else sys.executable
        launcher = find_launcher(self._request.launcher) if self._request.launcher else None
        return Knobs(engine=engine.name, values=engine.fitted({}, launcher, lambda: engine.built_with(python, "mpi")))

    def _probed(self, knobs: Knobs, place: Path, profile: ModelProfile | None = None) -> Cluster:
        request, most = self._request, max(self._counts)
        on_gpu = request.device != "cpu" and host.gpus() > 0
        backend = "nccl" if on_gpu else "gloo"
        if profile is not None:  # of a script, which chooses its device itself
            on_gpu = profile.kind == "gpu"
            backend = find_engine(knobs.engine).exchange(profile, knobs.values).backend
        asked = ProbeRequest(
            backends=(backend,),
            hosts=request.hosts,
            slots=None if request.hosts else request.per_node if allocated_here() else most,
            threads_per_rank=self._plan.threads_per_rank or 1,
            device="cuda" if on_gpu else "cpu",
            seconds=self._probe_s,
            env=request.env,
            ssh=request.ssh,
            timeout_s=request.timeout_s,
            folder=str(place),
        )
        return probe_cluster(asked, self._progress)

    def _launched(self, request: MeasureRequest, limits: dict[str, Any]) -> Measurement:
        """Measure, or continue what is there."""
        place = Path(request.folder)
        if (place / PLAN).exists():
            return continue_measurement(place, limits, self._progress)
        return measure(msgspec.structs.replace(request, **limits), self._progress)

    def _measure(self, seconds: float) -> None:
        self._launched(self._measured(), {"budget_s": seconds})

    def _correct_map(self) -> None:
        """Let all launches so far check what was predicted, and correct the map by them before anybody sees it."""
        place = self._folder / "estimate"
        predicted = kept(place / UNCORRECTED, Prediction) or self._prediction
        if predicted is None or predicted.checks or self._measurement is None:  # checks of a study begun without it
            return
        save(predicted, place / UNCORRECTED)
        save(corrected_by(predicted, self._measurement), place / PREDICTION)
        self._learn()

    def _tune(self, seconds: float) -> None:
        place, request = self._folder / "tune", self._request
        if any(complete_lines(place / SAMPLES)):
            if self._tuning and self._tuning.complete:
                return
            try:
                resume_search(place, self._progress, seconds)
                return
            except UsageError:  # what ranks switched while they trained ended with them
                emptied(place, "tune")
        (np, batch), threads = self._target, self._plan.threads_per_rank
        tune(
            TuneRequest(
                **launch_of(request),
                np=np,
                batch=batch,
                engine=next(iter(self._engines), ""),
                # Said, they count as fixed: only where this number of processes would not get them anyway.
                threads_per_rank=request.threads_per_rank or (None if np == max(self._counts) else threads),
                steps=_MOST_TUNED_STEPS if request.command else None,
                budget_s=seconds,
                folder=str(place),
            ),
            self._progress,
        )

    def _check(self) -> None:
        """Launches of both settings in turn, so that a machine that gets slower slows both."""
        if self._tuning is None:
            raise WorkFailed("there is no tuned setting to check")
        values = {**self._tuning.held, **self._tuning.values}
        threads = values.pop(THREADS.name, self._plan.threads_per_rank)
        knobs = knob_texts(values)
        tuned = {"knobs": knobs, "threads_per_rank": None if threads is None else int(threads)}
        for launches in range(1, FEWEST_LAUNCHES + 1):
            for name, setting in (("default", {}), ("tuned", tuned)):
                asked = self._measured(folder=f"check/{name}", np=(self._target[0],), **setting)
                self._launched(asked, {"launches": launches})


def is_open(measurement: Measurement) -> bool:
    """True when a steady speedup is not known within the precision, or most launches were disturbed."""
    found = _speedups(measurement)
    vague = any(each.interval == "range" or _half_width(each) > PRECISION for each in found)
    return vague or is_disturbed(measurement.runs)


def narrowing_s(measurement: Measurement) -> float:
    """About the seconds of launches after which every steady speedup is known within the precision."""
    made = Counter(run.point for run in measurement.runs)
    wanted = [USUAL_LAUNCHES]
    for each in _speedups(measurement):  # intervals shrink with the root of the launches
        wide = 1.0 if each.interval == "range" else _half_width(each) / PRECISION
        wanted.append(min(math.ceil(each.count * wide**2), _MOST_LAUNCHES))
    more = sum(max(max(wanted) - count, 0) for count in made.values())
    return more * fmean(run.wall_s for run in measurement.runs)


def _speedups(measurement: Measurement) -> list[Estimate]:
    """Steady speedups of several processes."""
    points = [point for curve in scaling_of(measurement).curves for point in curve.points]
    return [point.speedup["steady"] for point in points if point.np > 1 and "steady" in point.speedup]


def _half_width(estimate: Estimate) -> float:
    """Half of an interval, relative to its value."""
    return float((estimate.high / estimate.low) ** 0.5 - 1)


def kept(path: Path, record_type: type[Any]) -> Any:
    """A record that an earlier part left; None where there is none. One that cannot be read is refused."""
    return load(path, record_type) if path.is_file() else None


def _decoded(path: Path) -> dict[str, Any]:
    try:
        return dict(msgspec.json.decode(path.read_bytes()))
    except (OSError, msgspec.DecodeError):
        return {}
