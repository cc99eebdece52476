"""Tunes a training while it runs: the ranks switch between steps, the search runs beside them."""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from scalescope.errors import ScalescopeError, UsageError, WorkFailed
from scalescope.jobs.folders import emptied
from scalescope.jobs.launch import Launched, run_job
from scalescope.jobs.plan import Settings
from scalescope.records.run import Point
from scalescope.records.tuning import TuneRequest, Tuning, Values
from scalescope.tuner.controller_files import ControllerFiles, SampleReport, TrainingEnded
from scalescope.tuner.journal import Audience, Journal, Surroundings
from scalescope.tuner.prior import predict
from scalescope.tuner.space import online_space
from scalescope.tuner.tuner import ONLINE, Block, Options, Request, Tuner
from scalescope.units import plural

_UNTIL_STOPPED = 1_000_000_000  # Steps of a MODEL: it is stopped when the search is over
_WARMUP_SAMPLES = 2
_SURVEY_STEPS = 3
_PRIORITY = 15


def tune_online(request: TuneRequest, settings: Settings, point: Point, folder: Path, audience: Audience) -> Tuning:
    """Launch the training, tune it while it runs, and let it go on with the winner to its own end."""
    over = threading.Event()
    training = emptied(folder / "training", "launch")  # before the search could read an earlier training's reports
    search = Search(request, folder, training, settings.knobs[point.engine].values, audience, over.is_set)
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
            _Relay(audience, search) if search.ends_the_training else audience,
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
    return search.found(
        steps=min((log.events for log in launched.watch.logs), default=0),
        fate="" if search.ends_the_training else "; the training ran to its end as it was",
    )


class _GivenUp(Exception):
    """Of a MODEL, whose training has no other purpose."""


class _Relay:
    """The audience of a launch that has to end when the search gives up."""

    def __init__(self, audience: Audience, search: "Search") -> None:
        self._audience, self._search = audience, search

    def steps(self, count: int) -> None:
        """Steps done."""
        if self._search.has_given_up:
            raise _GivenUp
        self._audience.steps(count)

    def line(self, source: str, text: str) -> None:
        """A line of output."""
        self._audience.line(source, text)


class Search:
    """The search beside a training, speaking with its rank 0 through files."""

    def __init__(
        self,
        request: TuneRequest,
        folder: Path,
        training: Path,
        held: Values,
        audience: Audience,
        is_over: Callable[[], bool],
    ) -> None:
        self._request, self._folder, self._held, self._audience = request, folder, held, audience
        self._files = ControllerFiles(training, is_over)
        self._options = options_of(request, ONLINE)
        warmup = _WARMUP_SAMPLES if request.warmup_samples is None else request.warmup_samples
        self._warmup_steps = warmup * self._options.steps_per_sample
        self._ended_ns = 0
        self._problem: ScalescopeError | None = None
        self._needed = self._warmup_steps + _SURVEY_STEPS + self._options.discard + self._options.steps_per_sample
        self.tuning: Tuning | None = None  # None until there is a sample
        self.has_given_up = False  # Whether nothing will be decided while the training goes on

    @property
    def ends_the_training(self) -> bool:
        """A MODEL is trained for as long as it is tuned, unless its steps are given."""
        return self._request.workload is not None and not self._request.steps

    def run(self) -> None:
        """Everything, to be run in a thread; what goes wrong is kept for the caller, and the ranks let go."""
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
        """Whoever waits for the search is told; on a full disk the ranks find out by themselves."""
        self._problem = problem
        with contextlib.suppress(Exception):
            self._files.send("let_go", why=str(problem or self._files.problem).removeprefix("not tuned: "))
        if problem and not self.ends_the_training:
            with contextlib.suppress(Exception):
                self._audience.decided(f"{str(problem)[:1].upper()}{str(problem)[1:]}; the training goes on as it was.")
        self.has_given_up = True

    def found(self, steps: int | None = None, fate: str = "") -> Tuning:
        """What came of it, or an error that says why there is nothing, and what became of the training."""
        if self._problem:
            raise type(self._problem)(f"{self._problem}{fate}")
        if self.tuning is None:
            made = self._files.steps if steps is None else steps
            raise UsageError(
                f"the training made {plural(made, 'step')} and the first sample needs {self._needed}: let it train "
                "longer, or ask for less with --steps-per-sample and --warmup-samples"
            )
        return self.tuning

    def _run(self) -> None:
        hello = self._files.hello()
        if hello.refused:
            raise UsageError(f"not tuned: {hello.refused}")
        self._audience.planned(
            f"Tuning while it trains: {self._warmup_steps} steps of warm-up, at most {self._options.max_samples} "
            f"samples of {self._options.steps_per_sample} steps, then the best one meets the default."
        )
        self._files.send("warmup", steps=self._warmup_steps)
        self._files.send("survey", steps=_SURVEY_STEPS)
        survey = self._files.survey() or None
        space = online_space(hello, survey, self._held, self._request.search)
        predicted = predict(space, survey) if survey else None
        tuner = Tuner(space, predicted, self._options)
        prior = "a survey of this training" if predicted else "none: the search goes by samples alone"
        around = Surroundings(engine="ddp", method="online", nodes=len(set(hello.hosts)) or 1, prior=prior)
        journal = Journal(self._folder, self._request, space, tuner, around)
        journal.warmup_steps = self._warmup_steps + _SURVEY_STEPS
        try:
            asked = tuner.next()
            number = self._send(asked)
            while asked:
                journal.announce(asked, self._options.max_samples, self._audience)
                report = self._files.sample(number)
                sample = tuner.tell(asked, self._block(report))
                for knob, why in report.fixed.items():
                    tuner.fix(knob)
                    journal.notes.append(f"{knob} is fixed: {why}")
                asked = tuner.next()
                number = self._send(asked)  # first: the ranks wait for it
                journal.add(sample, self._audience)
        except TrainingEnded:
            if tuner.default_step_s is None:
                raise
            self.tuning = journal.close(
                complete=False, why_not=self._files.problem or "the training ended before it was decided"
            )
            return
        self._finish(tuner, journal)

    def _send(self, asked: Request | None) -> int:
        if asked is None:
            return -1
        limit_ns = None if asked.limit_s is None else int(asked.limit_s * 1e9)
        return self._files.send(
            "sample",
            values={**self._held, **asked.values},
            discard=self._options.discard,
            steps=asked.steps,
            check=self._options.check,
            limit_ns=limit_ns,
        )

    def _block(self, report: SampleReport) -> Block:
        block = _block(report, self._ended_ns)
        self._ended_ns = report.ended_ns
        return block

    def _finish(self, tuner: Tuner, journal: Journal) -> None:
        """The winner stays in force; a MODEL has nothing more to do."""
        tuning = journal.close(complete=True)  # first: what cannot be kept is not put in force either
        if self.ends_the_training:
            self._files.send("stop")
        else:
            self._files.send("free", values={**self._held, **tuner.outcome().values})
        self.tuning = tuning
        self._audience.decided("" if self.ends_the_training else "Decided; the training goes on with it to its end.")


def options_of(request: TuneRequest, defaults: Options) -> Options:
    """The search's options as the user wants them."""
    wanted = {
        "steps_per_sample": request.steps_per_sample,
        "confirm_steps": request.steps_per_sample,
        "max_samples": request.max_samples,
        "gp_noise": request.gp_noise,
    }
    return msgspec.structs.replace(defaults, **{name: value for name, value in wanted.items() if value is not None})


def _block(report: SampleReport, previous_end_ns: int) -> Block:
    since = previous_end_ns or report.began_ns
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
