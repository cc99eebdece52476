"""The verbs as functions: they take what the command line takes, by the same names, and return records.

`__init__.pyi` next to this file lists the keywords of every verb; python -m scalescope.api.stub writes it.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from scalescope.errors import UsageError
from scalescope.named_paths import takes_paths
from scalescope.options import options_of
from scalescope.progress import Progress
from scalescope.records.store import Record
from scalescope.records.submission import Submission
from scalescope.verbs import VERBS, find_verb, limits_of, resume_verb, run_verb
from scalescope.verbs.explain import explain as explained

_ELSEWHERE = {
    "Question": "scalescope.simulator.grid",
    "predict": "scalescope.simulator.grid",
    "apply_tuned": "scalescope.tuner.context",
    "tuning": "scalescope.tuner.context",
    "write_report": "scalescope.verbs.report",
}

__all__ = [
    "Progress",
    "Question",
    "apply_tuned",
    "compare",
    "doctor",
    "draw",
    "estimate",
    "explain",
    "measure",
    "predict",
    "probe",
    "resume",
    "scaling",
    "study",
    "tabulate",
    "tune",
    "tuning",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """A function of a room as it is, imported when it is first used, or a verb that has no function of its own."""
    if name in _ELSEWHERE:
        return getattr(import_module(_ELSEWHERE[name]), name)
    if any(verb.name == name for verb in VERBS):
        arguments = [option.keyword for option in options_of(find_verb(name).request) if option.opt.argument]

        @takes_paths
        def call(*given: Any, progress: Progress | None = None, **options: Any) -> Any:
            if len(given) > len(arguments):
                raise TypeError(f"{name} takes {len(arguments)} arguments without a name, not {len(given)}")
            return _run(name, progress, {**dict(zip(arguments, given, strict=False)), **options})

        return call
    raise AttributeError(f"module 'scalescope.api' has no attribute '{name}'")


def _run(verb: str, progress: Progress | None, options: dict[str, Any]) -> Any:
    """Run a verb by its options, or resume it."""
    found, folder = find_verb(verb), options.pop("resume", "")
    if not folder:
        return run_verb(found, found.ask(**options), progress or Progress())
    if not isinstance(folder, str | Path):
        raise UsageError(f"resume takes the folder of the {verb} to resume: resume='results/...'")
    return resume_verb(found, Path(folder), limits_of(found, options), progress or Progress())


@takes_paths
def doctor() -> Any:
    """Describe this machine."""
    return _run("doctor", None, {}).machine


@takes_paths
def measure(model: Any = "", *, progress: Progress | None = None, **options: Any) -> Any:
    """Launch a model, or a command instead, at every point; `scaling` makes curves of what was measured.

    Args:
        model: A built-in name, `package.module:factory`, `file.py:factory`, or a description; empty with `command`.
        progress: A subclass of Progress that shows how it goes on; by default nothing is shown.
        **options: As the options of `scalescope measure`: `np=[1, 2]`, `batch=[32]`, `hosts="a:2,b:2"`,
            `knobs={"bucket_cap_mb": 4}`, `budget_s="10m"`. `resume` names the folder of a measurement to resume.

    Returns:
        Every launch, with its steps and phases; `folder` is the result folder.

    Raises:
        UsageError: The request cannot be carried out as it is.
        WorkFailed: No launch succeeded.
    """
    return _run("measure", progress, {"model": model, **options})


@takes_paths
def resume(folder: str | Path, *, progress: Progress | None = None, **limits: Any) -> Any:
    """Resume an interrupted measurement, or add launches to a finished one; the limits replace those it had."""
    return _run("measure", progress, {"resume": folder, **limits})


def scaling(measurement: Any) -> Any:
    """The curves of a measurement: speedups with intervals, what limits them, and sentences."""
    from scalescope.measurement.scaling import scaling_of

    return scaling_of(measurement)


@takes_paths
def estimate(model: Any = "", *, progress: Progress | None = None, **options: Any) -> Any:
    """Predict how fast a model, or a command instead, would be at every number of processes and batch size.

    Args:
        model: A built-in name, `package.module:factory`, `file.py:factory`, or a description; empty with `command`,
            which runs here as rank 0 of N.
        progress: A subclass of Progress that shows how it goes on; by default nothing is shown.
        **options: As the options of `scalescope estimate`.

    Returns:
        The map, with the recommended cell and the checks; `folder` is the result folder.

    Raises:
        UsageError: The request cannot be carried out as it is.
    """
    return _run("estimate", progress, {"model": model, **options})


@takes_paths
def probe(*, progress: Progress | None = None, **options: Any) -> Any:
    """Measure what collectives cost among the ranks of this machine or of named hosts; also written as cluster.toml."""
    return _run("probe", progress, options)


@takes_paths
def explain(paths: Any = (), *, model: Any = "", progress: Progress | None = None, **options: Any) -> Any:
    """Explain where the time goes: in files that are there, or in a model or a command that is captured now.

    Args:
        paths: Traces of all ranks, a folder of measure or explain, logs, a scaling table, an autotune log.
        model: Trained and captured, instead of paths; or pass `command`.
        progress: A subclass of Progress that shows how a capture goes on; by default nothing is shown.
        **options: As the options of `scalescope explain`. For logs: `np`, the number of processes of each, and
            `pattern`, a regular expression with named groups for the lines to read.

    Returns:
        An Explanation of traces, a Scaling of tables, logs and measurements, an Autotune of Horovod's autotune log.

    Raises:
        UsageError: A file cannot be read, or the request cannot be carried out as it is.
    """
    asked = find_verb("explain").ask(paths=paths, model=model, **options)
    return run_verb(find_verb("explain")._replace(run=explained), asked, progress or Progress())


@takes_paths
def tune(model: Any = "", *, progress: Progress | None = None, **options: Any) -> Any:
    """Search for faster knobs of a model, or a command; the default is kept unless another setting is clearly faster.

    Args:
        model: A built-in name, `package.module:factory`, `file.py:factory`, or a description; empty with `command`.
        progress: A subclass of Progress that shows how it goes on; by default nothing is shown.
        **options: As the options of `scalescope tune`. `resume` names the folder of a search to resume.

    Returns:
        What was tried and decided; `folder` is the result folder.

    Raises:
        UsageError: The request cannot be carried out as it is.
    """
    return _run("tune", progress, {"model": model, **options})


@takes_paths
def study(model: Any = "", *, progress: Progress | None = None, **options: Any) -> Any:
    """Estimate, measure, explain, tune and check one training within a time budget, and write the page.

    Args:
        model: A built-in name, `package.module:factory`, `file.py:factory`, or a description; empty with `command`.
        progress: A subclass of Progress that shows how it goes on; by default nothing is shown.
        **options: As the options of `scalescope study`. `resume` names the folder of a study to resume; finished
            parts stay.

    Returns:
        Every answer, and what became of every part; the page is report.html in the folder.

    Raises:
        UsageError: The request cannot be carried out as it is; nothing was launched.
        WorkFailed: No part has a result.
    """
    from scalescope.show.page import PAGE, write_page
    from scalescope.show.study import on_page
    from scalescope.studies.results import read_results

    done = _run("study", progress, {"model": model, **options})
    if isinstance(done, Submission):
        return done
    place = done.folder
    (results,) = read_results([place])
    write_page(*on_page([results]), place / PAGE)
    return results


@takes_paths
def compare(a: str | Path, b: str | Path, **options: Any) -> Any:
    """Compare A with B: every time that both have, with intervals and a verdict.

    Args:
        a: A result folder, or a file that explain reads.
        b: The same, later.
        **options: `tolerance`, `5%` or 0.05: a change within it is none.

    Returns:
        Pairs of times; `slower` says whether B is beyond the tolerance.

    Raises:
        UsageError: They cannot be read, or have no time in common.
    """
    return _run("compare", None, {"a": a, "b": b, **options})


@takes_paths
def draw(record: Any, folder: str | Path, formats: Sequence[str] | None = None) -> list[Path]:
    """Draw what was measured, read, predicted, explained or tuned; the files."""
    from scalescope.records.request import USUAL_FORMATS
    from scalescope.show.files import write_figures

    return write_figures(_document(record), Path(folder), USUAL_FORMATS if formats is None else formats)


def tabulate(record: Any, form: str = "markdown") -> str:
    """Write what was measured, read, predicted or explained as a table for a paper, a proposal or another program."""
    from scalescope.show.files import as_csv, as_latex, as_markdown

    document = _document(record)
    if not document.files:
        raise UsageError(f"a {type(record).__name__} has no table: tabulate a measurement, prediction or explanation")
    (name, table), *_ = document.files.items()
    forms = {
        "csv": lambda: as_csv(table),
        "markdown": lambda: as_markdown(document),
        "latex": lambda: as_latex(document, name),
    }
    return forms[form]()


def _document(record: Any) -> Any:
    """The Document of a record; of a measurement that of its curves."""
    from scalescope.records.run import Measurement
    from scalescope.show import document_of

    return document_of(scaling(record) if isinstance(record, Measurement) else record)


def _as_html(record: Any) -> str | None:
    """Render for a notebook a record; None where it is no result."""
    from scalescope.records.run import Measurement
    from scalescope.show import describes
    from scalescope.show.notebook import as_html

    return as_html(_document(record)) if isinstance(record, Measurement) or describes(record) else None


Record.shown_as = _as_html
