"""Tunes a training while it runs: the ranks switch between steps, the search runs next to them."""

import contextlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from scalescope.engines import find_engine
from scalescope.errors import ScalescopeError, UsageError, WorkFailed
from scalescope.jobs.command import uses_placeholder
from scalescope.jobs.folders import emptied
from scalescope.jobs.launch import Launched, run_job
from scalescope.jobs.plan import Settings
from scalescope.progress import Progress
from scalescope.records.files import TUNING
from scalescope.records.run import Point
from scalescope.records.store import save
from scalescope.records.tuning import RAN_TO_ITS_END, Sample, TuneRequest, Tuning, Values
from scalescope.text import knob_name, plural
from scalescope.tuner.blocks import Block, SampleRequest
from scalescope.tuner.controller_files import ControllerFiles, Hello, SampleReport, TrainingEnded
from scalescope.tuner.journal import Journal, begin_search
from scalescope.tuner.search import ONLINE, options_of
from scalescope.tuner.space import online_space
from scalescope.tuner.tuner import Tuner

_UNTIL_STOPPED = 1_000_000_000  # Steps of a MODEL: it is stopped when the search is over
_WARMUP_SAMPLES = 2
_SURVEY_STEPS = 3
_PRIORITY = 10  # A tenth of a core that ranks keep busy: at 15 a search of a short training came too late


def tune_online(
    request: TuneRequest,
    settings: Settings,
    point: Point,
    folder: Path,
    progress: Progress,
    kind: "type[OnlineSearch] | None" = None,
    finished: Sequence[Sample] = (),
) -> Tuning:
    """Launch the training, tune it while it runs, and let it continue with the winner to its own end.

    `finished`: samples of an earlier launch whose comparison was not decided and is resumed.
    """
    over = threading.Event()
    training = emptied(folder / "training", "launch")  # before the search could read an earlier training's reports
    fixed = settings.knobs[point.engine].values
    search = (kind or OnlineSearch)(request, folder, training, fixed, progress, over.is_set, finished)
    asked = msgspec.structs.replace(settings.request, env={**settings.request.env, "SCALESCOPE_TUNE": "1"})
    worker = threading.Thread(target=search.run, daemon=True)
    worker.start()
    launched: Launched | None = None
    try:
        launched = run_job(
            msgspec.structs.replace(settings, request=asked),
            point,
            training,
            request.steps or _UNTIL_STOPPED,
            _Relay(progress, search) if search.ends_the_training else progress,
            keeps_steps=False,
        )
    except _GivenUp:
        pass
    finally:
        over.set()
        worker.join()
    if launched is None:
        return search.found()
    if launched.problem:
        kept = "nothing was tuned"
        if search.tuning:
            kept = f"{plural(len(search.tuning.samples), 'finished sample')} are kept in {folder}"
        raise WorkFailed("\n".join([f"{launched.problem}; {kept}", launched.details]).rstrip())
    steps = min((log.events for log in launched.watch.logs), default=0)
    found = search.found(
        steps=steps, fate="" if search.ends_the_training else "; the training ran to its end as it was"
    )
    if request.command and request.steps and steps < request.steps and not uses_placeholder(request.command, "run_dir"):
        found = msgspec.structs.replace(found, notes=(*found.notes, RAN_TO_ITS_END))
        save(found, folder / TUNING)
    return found


class _GivenUp(Exception):
    """Ends the training of a MODEL, which has no other purpose."""


class _Relay(Progress):
    """Progress of a launch that has to end when the search gives up."""

    def __init__(self, progress: Progress, search: "OnlineSearch") -> None:
        self._progress, self._search = progress, search

    def advance(self, steps: int) -> None:
        """Steps done."""
        if self._search.has_given_up:
            raise _GivenUp
        self._progress.advance(steps)

    def output(self, source: str, line: str) -> None:
        """A line of output."""
        self._progress.output(source, line)


class OnlineSearch:
    """The search next to a training, which it controls through files."""

    def __init__(
        self,
        request: TuneRequest,
        folder: Path,
        training: Path,
        fixed: Values,
        progress: Progress,
        is_over: Callable[[], bool],
        finished: Sequence[Sample] = (),
    ) -> None:
        self._finished = finished
        self._request, self._folder, self._fixed, self._progress = request, folder, fixed, progress
        self._files = ControllerFiles(training, is_over)
        self._options = options_of(request, ONLINE)
        warmup = _WARMUP_SAMPLES if request.warmup_samples is None else request.warmup_samples
        self._warmup_steps = warmup * self._options.steps_per_sample
        self._ended_ns = 0
        self._switches_left = math.inf
        self._problem: ScalescopeError | None = None
        self.tuning: Tuning | None = None  # None until there is a sample
        self.has_given_up = False  # Whether nothing will be decided while the training goes on

    @property
    def _needed(self) -> int:
        """Steps until the first sample is there."""
        return self._warmup_steps + _SURVEY_STEPS + self._options.discard + self._options.steps_per_sample

    @property
    def ends_the_training(self) -> bool:
        """A MODEL is trained for as long as it is tuned, unless its steps are given."""
        return self._request.workload is not None and not self._request.steps

    def run(self) -> None:
        """Run the search, in a thread; an error is kept for the caller, and the ranks let go."""
        with contextlib.suppress(OSError):  # the training comes first where both want a core
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _PRIORITY)
        try:
            self._run()
        except TrainingEnded:
            if self._files.problem:
                self._give_up(UsageError(f"not tuned: {self._files.problem}") if self.tuning is None else None)
        except UsageError as problem:
            self._give_up(problem)
        except BaseException as problem:
            line = str(problem) if isinstance(problem, ScalescopeError) else f"{type(problem).__name__}: {problem}"
            self._give_up(WorkFailed(f"the search failed: {line}"))

    def _give_up(self, problem: ScalescopeError | None) -> None:
        """Tell ranks and user that the search has ended; on a full disk the ranks find out by themselves."""
        self._problem = problem
        with contextlib.suppress(Exception):
            self._files.send("let_go", why=str(problem or self._files.problem).removeprefix("not tuned: "))
        if problem and not self.ends_the_training:
            with contextlib.suppress(Exception):
                self._progress.note(f"{str(problem)[:1].upper()}{str(problem)[1:]}; the training goes on as it was.")
                self._progress.stage("training as it was")
        self.has_given_up = True

    def found(self, steps: int | None = None, fate: str = "") -> Tuning:
        """The result, or an error that says why there is none and what became of the training."""
        if self._problem:
            raise type(self._problem)(f"{self._problem}{fate}")
        if self.tuning is None:
            made = self._files.steps if steps is None else steps
            short = f"the training made {plural(made, 'step')} and the first sample needs {self._needed}"
            if made >= self._needed:  # on busy cores, or with steps of a millisecond
                short = f"the training was over after {plural(made, 'step')}, before its first sample"
            less = "ask for less with --steps-per-sample and --warmup-samples"
            raise UsageError(f"{short}: let it train longer, or {less}")
        return self.tuning

    def _run(self) -> None:
        """Search and compare until there is a decision."""
        hello = self._files.hello()
        if hello.refused:
            raise UsageError(f"not tuned: {hello.refused}")
        known = {knob.name for knob in find_engine(hello.engine).knobs} | set(map(knob_name, self._request.knobs))
        # Not what followed from the engine that a script only looks like.
        self._fixed = {name: value for name, value in self._fixed.items() if name in known}
        self._progress.note(self._plan())
        self._files.send("warmup", steps=self._warmup_steps)
        self._switches_left = math.inf if hello.most_switches is None else hello.most_switches
        tuner, journal = self._begin(hello)
        if self._finished:
            tuner.restore(self._finished)
            tuner.resume()
            journal.take_up(self._finished)
        try:
            sent = self._send(tuner)
            while sent:
                asked, number = sent.pop(0)
                journal.begin(asked, self._options.max_samples, self._progress)
                report = self._files.sample(number)
                sample = tuner.tell(asked, self._block(report))
                self._switches_left -= 1 if report.switch_ns else 0
                for knob, why in report.fixed.items():
                    tuner.fix(knob)
                    journal.notes.append(f"{knob} is fixed: {why}")
                if not sent:
                    sent = self._send(tuner)  # first: the ranks wait for it
                journal.add(sample, self._progress)
        except TrainingEnded:
            if tuner.default_step_s is None:
                raise
            self.tuning = journal.close(
                complete=False, why_not=self._files.problem or "the training ended before it was decided"
            )
            return

        tuning = journal.close(complete=True)  # first: what cannot be kept is not applied either
        if self.ends_the_training:
            self._files.send("stop")
        else:
            self._files.send("free", values={**self._fixed, **tuner.outcome().values})
        self.tuning = tuning
        if not self.ends_the_training:
            self._progress.note("Decided; the training continues to its end with it.")
            self._progress.stage("training to its end")

    def _plan(self) -> str:
        return (
            f"Tuning while it trains: {self._warmup_steps} steps of warm-up, at most {self._options.max_samples} "
            f"samples of {self._options.steps_per_sample} steps, then the best one against the default."
        )

    def _begin(self, hello: Hello) -> tuple[Tuner, Journal]:
        """Prepare the first sample: survey, space, search and its journal."""
        self._files.send("survey", steps=_SURVEY_STEPS)
        survey = self._files.survey() or None
        space = online_space(hello, survey, self._fixed, self._request.search)
        nodes = len(set(hello.hosts)) or 1
        tuner, journal = begin_search(
            self._folder, self._request, space, survey, self._options, method="online", nodes=nodes
        )
        journal.warmup_steps = self._warmup_steps + _SURVEY_STEPS
        return tuner, journal

    def _send(self, tuner: Tuner) -> list[tuple[SampleRequest, int]]:
        """Every sample that is wanted next, with the number of its directive; ranks do not wait between several."""
        plan = tuner.plan()
        if len(plan) > self._switches_left:
            tuner.stop("this training allows no more switches")
            return []
        return [
            (
                asked,
                self._files.send(
                    "sample",
                    values={**self._fixed, **asked.values},
                    discard=self._options.discard,
                    steps=asked.steps,
                    check=self._options.check,
                    limit_ns=None if asked.limit_s is None else int(asked.limit_s * 1e9),
                ),
            )
            for asked in plan
        ]

    def _block(self, report: SampleReport) -> Block:
        since = self._ended_ns or report.began_ns
        self._ended_ns = report.ended_ns
        return Block(
            step_s=tuple(ns * 1e-9 for ns in report.step_ns),
            samples=report.samples,
            cut=report.cut,
            discarded=report.discarded,
            waited=report.waited,
            switch_s=report.switch_ns * 1e-9,
            seconds=(report.ended_ns - since) * 1e-9,
            problem=report.problem,
        )
