"""The parts of a study, each done by its verb, in a folder of its own; what an interruption left of it is resumed."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from scalescope import host
from scalescope.diagnosis.sources import explain
from scalescope.engines import find_engine
from scalescope.errors import UsageError, WorkFailed
from scalescope.estimation.estimate import CLUSTER, PLAN, PREDICTION, PROFILE, estimate
from scalescope.estimation.probe import probe_cluster
from scalescope.jobs.folders import emptied, result_folder
from scalescope.jobs.request import interpreter_of
from scalescope.measurement.sweep import continue_measurement, measure, settle_here
from scalescope.measurement.trace import traced_run
from scalescope.progress import Progress
from scalescope.records.cluster import Cluster
from scalescope.records.cluster_file import load_cluster, write_cluster
from scalescope.records.explanation import Explanation
from scalescope.records.job import Knobs
from scalescope.records.profile import ModelProfile
from scalescope.records.request import EstimatePlan, EstimateRequest, MeasureRequest, ProbeRequest, launch_of
from scalescope.records.run import Measurement
from scalescope.records.store import complete_lines, save
from scalescope.records.tuning import TuneRequest
from scalescope.studies.expectations import FEWEST_LAUNCHES, USUAL_LAUNCHES, Expectations, kept
from scalescope.studies.script_map import corrected_by, map_of_script, profile_of_script
from scalescope.tuner.journal import SAMPLES
from scalescope.tuner.offline import SURVEY
from scalescope.tuner.run import resume as resume_search
from scalescope.tuner.run import tune
from scalescope.tuner.settings import THREADS, shown_value
from scalescope.units import doublings

_SURVEYED_STEPS, _SURVEY_AFTER = 40, 10
_MOST_TUNED_STEPS = 500  # After which a script that is tuned is stopped


class Parts(Expectations):
    """What a study of one training does."""

    _progress: Progress  # Of the part that is done now

    def run(self, part: str, seconds: float, progress: Progress) -> None:
        """Do a part, or what an interruption left of it."""
        self._progress = progress
        try:
            if part == "estimate":
                (self._survey if self._request.command else self._estimate)()
            elif part == "measure":
                self._measure(seconds)
            elif part == "explain":
                self._explain()
            elif part == "tune":
                self._tune(seconds)
            elif part == "check":
                self._check()
            else:
                self._measure_more(part, seconds)
        finally:
            self._learn()

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
                threads_per_rank=request.threads_per_rank,
                device=request.device,
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
            measurement = self._launched(asked, place / "survey", {})
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
                raise WorkFailed(f"no map: the script was not surveyed; it made {made} steps and the first 10 warm up")
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
        """Of the map, as the engine runs here without any being set."""
        engine = self._engine
        python = interpreter_of(self._request.command, sys.executable) if self._request.command else sys.executable
        return Knobs(
            engine=engine.name,
            values=engine.fitted({}, self._request.launcher, lambda: engine.built_with(python, "mpi")),
        )

    def _probed(self, knobs: Knobs, place: Path, profile: ModelProfile | None = None) -> Cluster:
        request, most = self._request, max(self._counts)
        on_gpu = request.device != "cpu" and host.gpus() > 0
        backend = "nccl" if on_gpu else "gloo"
        if profile is not None:  # of a script, which chooses its device itself
            on_gpu = profile.kind == "gpu"
            backend = find_engine(knobs.engine).exchange(profile, knobs.values).backend
        settings = settle_here(self._measured(), self._folder)
        asked = ProbeRequest(
            backends=(backend,),
            hosts=request.hosts,
            slots=None if request.hosts else most,
            threads_per_rank=settings.threads_per_rank or 1,
            device="cuda" if on_gpu else "cpu",
            seconds=self._probe_s,
            env=request.env,
            ssh=request.ssh,
            timeout_s=request.timeout_s,
            folder=str(place),
        )
        return probe_cluster(asked, self._progress)

    def _launched(self, request: MeasureRequest, place: Path, limits: dict[str, Any]) -> Measurement:
        """Measure, or continue what is there."""
        if (place / PLAN).exists():
            return continue_measurement(place, limits, self._progress)
        return measure(msgspec.structs.replace(request, **limits), self._progress)

    def _measure(self, seconds: float) -> None:
        """The launches that measure check the map, which is corrected by them before anybody sees it."""
        try:
            self._launched(self._measured(), self._folder / "measure", {"budget_s": seconds})
        finally:
            self._learn()
            if self._prediction and self._measurement and not self._prediction.checks:
                save(corrected_by(self._prediction, self._measurement), self._folder / "estimate" / PREDICTION)

    def _measure_more(self, part: str, seconds: float) -> None:
        """More launches of every point, points of strong scaling, or those of other engines."""
        more: dict[str, dict[str, Any]] = {
            "refine": {"launches": USUAL_LAUNCHES},
            "strong": {"launches": FEWEST_LAUNCHES, "scaling": ("strong", "weak")},
            "engines": {"launches": FEWEST_LAUNCHES, "engines": self._plan.engines},
        }
        continue_measurement(self._folder / "measure", {**more[part], "budget_s": seconds}, self._progress)

    def _explain(self) -> None:
        np = self._target[0]
        place = traced_run(self._measured(folder="explain", np=(np,), trace=True), self._progress)
        found = explain([place])
        assert isinstance(found, Explanation)
        save(found, place / "explanation.json")

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
        knobs = tuple(f"{name}={shown_value(value)}" for name, value in values.items())
        tuned = {"knobs": knobs, "threads_per_rank": None if threads is None else int(threads)}
        alone: dict[str, Any] = {"np": (self._target[0],)}
        for launches in range(1, FEWEST_LAUNCHES + 1):
            for name, setting in (("default", {}), ("tuned", tuned)):
                asked = self._measured(folder=f"check/{name}", **alone, **setting)
                self._launched(asked, self._folder / "check" / name, {"launches": launches})


def _decoded(path: Path) -> dict[str, Any]:
    try:
        return dict(msgspec.json.decode(path.read_bytes()))
    except (OSError, msgspec.DecodeError):
        return {}
