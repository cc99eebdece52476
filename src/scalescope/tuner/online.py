"""Tunes a training while it runs: the ranks switch between steps, the search runs beside them."""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from scalescope.errors import UsageError, WorkFailed
from scalescope.measurement.folders import emptied
from scalescope.measurement.launch import run_job
from scalescope.measurement.plan import Settings
from scalescope.records.run import Point
from scalescope.records.tuning import TuneRequest, Tuning, Values
from scalescope.tuner.journal import Audience, Journal, Surroundings
from scalescope.tuner.pilot_files import PilotFiles, SampleReport, TrainingEnded
from scalescope.tuner.prior import predict
from scalescope.tuner.space import online_space
from scalescope.tuner.tuner import ONLINE, Block, Options, Request, Tuner
from scalescope.units import plural

_UNTIL_STOPPED = 1_000_000_000
"""Steps of a MODEL: it is stopped when the search is over."""
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
    try:
        launched = run_job(
            msgspec.structs.replace(settings, request=asked),
            point,
            training,
            request.steps or _UNTIL_STOPPED,
            _Relay(audience, search),
        )
    finally:
        over.set()
        worker.join()
    search.raise_problem()
    if search.tuning is None:
        if launched.problem:
            raise WorkFailed("\n".join([f"{launched.problem}; nothing was tuned", launched.details]).rstrip())
        raise UsageError(search.too_short(min((log.events for log in launched.watch.logs), default=0)))
    if launched.problem:
        kept = f"{plural(len(search.tuning.samples), 'finished sample')} are kept in {folder}"
        raise WorkFailed("\n".join([f"{launched.problem}; {kept}", launched.details]).rstrip())
    return search.tuning


class _Relay:
    """The audience of the launch; stops the launch when the search cannot go on."""

    def __init__(self, audience: Audience, search: "Search") -> None:
        self._audience, self._search = audience, search

    def steps(self, count: int) -> None:
        """Steps done."""
        self._search.raise_problem()
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
        self._files = PilotFiles(training, is_over)
        self._options = options_of(request, ONLINE)
        warmup = _WARMUP_SAMPLES if request.warmup_samples is None else request.warmup_samples
        self._warmup_steps = warmup * self._options.steps_per_sample
        self._ended_ns = 0
        self._problem: BaseException | None = None
        self._needed = self._warmup_steps + _SURVEY_STEPS + self._options.discard + self._options.steps_per_sample
        self.tuning: Tuning | None = None
        """None until there is a sample."""

    def run(self) -> None:
        """Everything, to be run in a thread; what goes wrong is kept for the caller."""
        with contextlib.suppress(OSError):  # the training comes first where both want a core
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _PRIORITY)
        try:
            self._run()
        except TrainingEnded:
            pass
        except BaseException as problem:
            self._problem = problem

    def raise_problem(self) -> None:
        """Raise what went wrong beside the training, if anything did."""
        if self._problem:
            raise self._problem

    def too_short(self, steps: int | None = None) -> str:
        """Why there is not one sample."""
        made = self._files.steps if steps is None else steps
        return (
            f"the training made {plural(made, 'step')} and the first sample needs {self._needed}: let it train longer, "
            "or ask for less with --steps-per-sample and --warmup-samples"
        )

    def _run(self) -> None:
        hello = self._files.hello()
        if hello.refused:
            raise UsageError(hello.refused)
        self._audience.planned(
            f"Tuning while it trains: {self._warmup_steps} steps of warm-up, at most {self._options.max_samples} "
            f"samples of {self._options.steps_per_sample} steps, then the best one meets the default."
        )
        self._files.send("warmup", steps=self._warmup_steps)
        self._files.send("survey", steps=_SURVEY_STEPS)
        survey = self._files.survey()
        space = online_space(hello, survey, self._held)
        predicted = predict(space, survey)
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
                sample = tuner.tell(asked, self._block(number))
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

    def _block(self, number: int) -> Block:
        report = self._files.sample(number)
        block = _block(report, self._ended_ns)
        self._ended_ns = report.ended_ns
        return block

    def _finish(self, tuner: Tuner, journal: Journal) -> None:
        """The winner stays in force; a MODEL has nothing more to do."""
        outcome = tuner.outcome()
        if self._request.workload and not self._request.steps:
            self._files.send("stop")
        else:
            self._files.send("free", values={**self._held, **outcome.values})
        self.tuning = journal.close(complete=True)
        ends = self._request.workload is not None and not self._request.steps
        self._audience.decided("" if ends else "Decided; the training goes on with it to its end.")


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
