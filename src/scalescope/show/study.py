"""All results of one training together: the setting to use, why it is not faster, what to change, how to repeat it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from scalescope import __version__
from scalescope.records.comparison import TOLERANCE, Comparison
from scalescope.records.explanation import Explanation
from scalescope.records.job import NO_ENGINE
from scalescope.records.prediction import Cell, Prediction, device_hours
from scalescope.records.results import Results
from scalescope.records.scaling import Curve, Estimate, Scaling, ScalingPoint
from scalescope.records.tuning import RAN_TO_ITS_END
from scalescope.show import document_of
from scalescope.show.document import Chapter, Column, Document, Figure, Section, Table, charted
from scalescope.show.prediction import recommended_cell, speedup_number, with_measured
from scalescope.show.scaling import fastest, largest, same_point
from scalescope.show.words import has_spread
from scalescope.stats import FEWEST, MEASURED, percent
from scalescope.text import listed, plain, plural
from scalescope.units import digits, format_seconds, format_share

_MOST_CELLS = 1600  # Of the maps on a page, which has to stay small
_ALIKE = 1.5  # Times by which steps of a traced launch may differ from those of the measurement
_SHARED = 1.2  # Times by which compute of several processes exceeds a step of one that shares nothing
PART_NAMES = {"refine": "more launches", "strong": "strong scaling", "engines": "other engines"}


def document(results: Results, page: str = "", most_cells: int | None = None) -> Document:
    """Describe a training: one kind of result as its verb does, several in one answer.

    Args:
        results: What is known of one training.
        page: The file that shows it, which JSON names.
        most_cells: Cells that a map draws; None: all.
    """
    documents = _documents(results, most_cells)
    checked, setting = check_words(results), setting_of(results)
    sections = [
        *(section for each in documents.values() for section in each.sections),
        Section("check", "The tuned setting, launched on its own", lines=[checked] if checked else []),
        _environment(results),
        Section("cite", "How to cite", [method_words(results)], code=[_BIBTEX], on_terminal=False),
    ]
    omitted = [*results.apart, *results.missing, *(omission_lines(results))]
    if "cluster" in documents and len(documents) > 1:
        del documents["cluster"]  # Its section is all that it adds
    if not documents:
        return Document(f"{plain(results.name, 60)} holds no results yet.", warnings=omitted, sections=sections)
    if len(documents) == 1:
        (only,) = documents.values()
        told = only._replace(warnings=(*only.warnings, *omitted), sections=sections)
        return told._replace(json=lambda: _json(results, told, documents, page))

    answers = ("scaling", "prediction", "explanation", "tuning", "autotune")  # What was measured comes first
    parts = [documents[name] for name in answers if name in documents]
    why = []
    if results.explanations:
        on = "" if setting.pays else f"On {plural(len(results.explanations[-1].ranks), 'process')}: "
        why.append(on + documents["explanation"].answer)
    if shared := contention_of(results):
        why.append(shared.words)
    if results.tuning:
        why.append(" ".join(filter(None, (documents["tuning"].answer, checked))))
    do = _one_line(results.settings) or next((each.do for each in parts if each.do), "")
    do = do or (shared.do if shared else "")
    warnings = [*omitted, *_mismatches(results), *(warning for each in parts for warning in each.warnings)]
    if results.tuning and RAN_TO_ITS_END in results.tuning.notes:
        warnings.insert(0, RAN_TO_ITS_END)  # a file was written: no count of further warnings hides that
    told = Document(
        answer=use_words(results) or parts[0].answer,
        why=[*why, *(line for each in parts for line in each.reasons)],
        do=do if setting.pays or not do else f"To make more processes pay: {do}",
        warnings=list(dict.fromkeys(warnings)),
        sections=sections,
        files={name: table for each in documents.values() for name, table in each.files.items()},
    )
    return told._replace(json=lambda: _json(results, told, documents, page))


def _documents(results: Results, most_cells: int | None) -> dict[str, Document]:
    """Documents of all records, in the order of the page; of several traced launches that of the last."""
    found: dict[str, Document] = {}
    if results.prediction:
        step = None if results.explanations else results.predicted_step
        shown = as_measured(results.prediction, results.scaling)
        predicted = document_of(shown, measured=results.scaling, step=step, most_cells=most_cells)
        predicted = predicted._replace(json=document_of(results.prediction).json)
        setting = setting_of(results)
        if results.scaling and (results.scaling.doubt or not (setting.cell and setting.pays)):
            # What was measured shows the answer: no figure of the map stands next to it.
            predicted = predicted._replace(
                sections=[each._replace(figures=partial(_behind, each.figures)) for each in predicted.sections]
            )
        if results.scaling and results.prediction.doubts:  # what was measured is on the same page
            predicted = predicted._replace(
                brief=(),
                sections=[
                    each._replace(facts=(), tables=(), figures=tuple) if each.name == "predicted" else each
                    for each in predicted.sections
                ],
            )
        found["prediction"] = predicted
    if results.scaling:
        found["scaling"] = document_of(results.scaling, measurement=results.measurement)
    if results.explanations:
        traced = document_of(results.explanations[-1])
        if (shared := contention_of(results)) and not results.explanations[-1].findings:
            traced = traced._replace(
                answer=traced.answer.removesuffix(" Nothing stands out."),
                sections=[
                    each._replace(lines=[f"{shared.words} {shared.do}."]) if each.name == "findings" else each
                    for each in traced.sections
                ],
            )
        several = [over_np(results.explanations)] if len(results.explanations) > 1 else []
        found["explanation"] = traced._replace(sections=[*traced.sections, *several])
    if results.tuning:
        tuned = document_of(results.tuning)
        first, *rest = tuned.sections
        found["tuning"] = tuned._replace(sections=[first._replace(code=[*first.code, *results.settings]), *rest])
    if results.autotune:
        found["autotune"] = document_of(results.autotune)
    if results.cluster and results.cluster.costs:
        found["cluster"] = document_of(results.cluster)
    return found


def as_measured(prediction: Prediction, measured: Scaling | None) -> Prediction:
    """The map with what was measured in place of what was predicted, which stays in its checks.

    Cells that launches have corrected stay as they are: at the pace of the profile, as all others of the map.
    """

    def cell_of(cell: Cell) -> Cell:
        engine = cell.engine or prediction.engine
        point = same_point(measured, cell, engine) if measured and cell.np > 1 and not cell.verified else None
        if not point or not point.step_s or not point.throughput or not (steady := point.speedup.get("steady")):
            return cell
        rate = point.throughput.value
        return msgspec.structs.replace(
            cell,
            step_s=point.step_s.value,
            low_s=point.step_s.low,
            high_s=point.step_s.high,
            speedup=steady.value,
            speedup_low=steady.low,
            speedup_high=steady.high,
            efficiency=point.efficiency.value if point.efficiency else steady.value / cell.np,
            throughput=rate,
            device_hours=device_hours(cell.np, rate),
            verified=True,
        )

    checked = with_measured(prediction, measured)
    return msgspec.structs.replace(checked, cells=tuple(map(cell_of, prediction.cells)))


def _one_line(lines: Sequence[str]) -> str:
    """Lines on how to use a setting in one: what is indented belongs to the heading above it."""
    words, indented = "", False
    for line in lines:
        separator = " " if line.startswith(" ") and not indented else "; "
        words += separator + line.strip() if words else line.strip()
        indented = line.startswith(" ")
    return words


def _behind(figures: Callable[[], Sequence[Figure]]) -> list[Figure]:
    return [figure._replace(leads=False) for figure in figures()]


def over_np(explanations: Sequence[Explanation]) -> Section:
    """Section on where the mean step of every traced launch goes."""

    (section,) = charted("explanation", [Section("over_np", "Over the number of ranks")], explanations)
    return section


def on_page(results: Sequence[Results], compared: Comparison | None = None) -> tuple[list[Chapter], Section | None]:
    """Every training as a chapter of a page, and what shows several of them together, where there is something."""
    chapters = []
    for each in results:
        document = document_of(each, most_cells=max(100, _MOST_CELLS // len(results)))
        title, name = plain(each.what, 80), plain(each.name, 60)
        chapters.append(Chapter(title if name in title else f"{title} ({name})", document, each.follow))
    return chapters, compared_section(results, compared) if len(results) > 1 else None


def compared_section(results: Sequence[Results], compared: Comparison | None) -> Section | None:
    """Section on what changed from the first to the second, and the mean steps of all that were traced."""
    traced = [each for each in results if each.explanations]
    section = Section("compared", "Compared")
    if compared:
        told = document_of(compared)
        section = section._replace(
            heading="Compared: B over A, above 1 is slower",
            lines=[told.answer],
            facts=[fact for each in told.sections for fact in each.facts],
            tables=[table for each in told.sections for table in each.tables],
        )
    if len(traced) > 1:
        last, names = [each.explanations[-1] for each in traced], [each.name for each in traced]
        (section,) = charted("explanation", [section], last, names)
        return section
    return section if compared else None


# --- the setting to use ---


class Setting(NamedTuple):
    """The setting that an answer speaks of."""

    cell: Cell | None  # Of the map; None: it recommends none
    point: ScalingPoint | None  # As measured: that of the cell or, without one, the fastest
    engine: str
    pays: bool  # False if several processes were launched and not shown to be faster than one

    @property
    def chosen(self) -> Cell | ScalingPoint | None:
        """Processes and batch; None where nothing tells."""
        return self.cell or self.point

    @property
    def steady(self) -> Estimate | None:
        """The measured speedup."""
        return self.point.speedup.get("steady") if self.point else None


def setting_of(results: Results) -> Setting:
    """The setting that the map recommends or, without one, the fastest that was measured."""
    prediction, scaling = results.prediction, results.scaling
    cell = recommended_cell(prediction) if prediction else None
    point, engine = None, ""
    if cell and prediction:
        point, engine = same_point(scaling, cell, prediction.engine) if scaling else None, prediction.engine
    elif scaling and (best := fastest(scaling)):
        point, engine = best[1], best[1].engine
    steady = point.speedup.get("steady") if point and point.np > 1 else None
    curves = scaling.curves if scaling else ()
    over_one = any(point in curve.points and curve.baseline_np == 1 for curve in curves)
    return Setting(cell, point, engine, pays=not (steady and over_one) or steady.low > 1.0)


def strong_point(results: Results) -> tuple[Curve, ScalingPoint] | None:
    """Strong scaling with the engine of the setting, on the most processes, next to an answer about weak scaling."""
    setting = setting_of(results)
    curves = [curve for curve in (results.scaling.curves if results.scaling else ()) if curve.engine == setting.engine]
    if not any(curve.scaling == "weak" and setting.point in curve.points for curve in curves):
        return None
    found = [(curve, largest(curve)) for curve in curves if curve.scaling == "strong"]
    return next(((curve, point) for curve, point in found if point and "steady" in point.speedup), None)


def use_words(results: Results) -> str:
    """`Use 4 processes with batch 64 each and ddp: 3.31x measured, 3.4x predicted, ...`; empty where nothing tells."""
    setting = setting_of(results)
    chosen, cell, steady = setting.chosen, setting.cell, setting.steady
    if chosen is None:
        return ""
    what = plural(chosen.np, "process")
    if chosen.batch is not None:
        what += f" with batch {chosen.batch:,g}" + (" each" if chosen.np > 1 else "")
    if chosen.np > 1 and setting.engine not in ("", NO_ENGINE):
        what += f" and {plain(setting.engine, 30)}"
    first = f"Use {what}"
    if not setting.pays:
        verdict = "slower than" if steady and steady.high < 1.0 else "not shown to be faster than"
        what += f" were {verdict} one"
        first = f"Use 1 process: {what}"
    doubt = results.scaling.doubt if results.scaling else ""

    # What was measured comes first, then what was predicted, then what either of them says of cost.
    efficiency, hours = (cell.efficiency, cell.device_hours) if cell else (None, 0.0)
    point = setting.point
    if point and point.throughput:
        efficiency = point.efficiency.value if point.efficiency else None
        hours = device_hours(point.np, point.throughput.value)
    if chosen.np == 1 and (instead := _too_inefficient(results)):
        facts = [instead]
    else:
        facts = [_measured(steady, doubt)] if steady else []
        facts += [_expected(cell, setting, results)] if cell else []
        facts += ["not measured"] if cell and not cell.verified and not (point and point.throughput) else []
        facts += [] if efficiency is None else [f"efficiency {format_share(efficiency)}"]
    facts.append(f"{digits(hours)} device-hours for a million samples")
    answer = f"{doubt} So far {what}" if doubt else first
    answer += f": {', '.join(facts)}."

    if strong := strong_point(results):
        curve, most = strong
        reached = _measured(most.speedup["steady"], doubt)
        answer += f" Strong scaling, batch {curve.batch:,} divided among {plural(most.np, 'process')}: {reached}."
    return answer


def _measured(steady: Estimate, doubt: str) -> str:
    """A measured speedup with its interval or, of few launches, their range; in doubt it speaks of these alone."""
    if not has_spread(steady):
        return f"{steady.value:.2f}x measured"
    ends = f"{steady.low:.2f} to {steady.high:.2f}"
    if steady.interval == "t":
        alone = ", of these launches alone" if doubt else ""
        return f"{steady.value:.2f}x measured ({percent(MEASURED)} interval {ends}{alone})"
    return f"{steady.value:.2f}x measured ({ends} in {'these ' if doubt else ''}{plural(steady.count, 'launch')})"


def _expected(cell: Cell, setting: Setting, results: Results) -> str:
    """The speedup by the map, as it was before the launches of a study corrected it."""
    checks = results.prediction.checks if results.prediction else ()
    check = next((each for each in checks if (each.np, each.batch) == (cell.np, cell.batch)), None)
    if cell.verified and setting.steady and check and results.study:
        base_s = cell.speedup * check.measured_s  # Of one process for the same work
        low, high = (speedup_number(base_s / end) for end in (check.high_s, check.low_s))
        return f"{speedup_number(base_s / check.predicted_s)}x predicted ({low} to {high})"
    ends = f"({speedup_number(cell.speedup_low)} to {speedup_number(cell.speedup_high)})"
    if not cell.verified:
        return f"{speedup_number(cell.speedup)}x expected {ends}"
    verified = "when the map was verified" if setting.point else "measured"  # by launches other than the measurement's
    return f"{speedup_number(cell.speedup)}x {verified} {ends}"


def _too_inefficient(results: Results) -> str:
    """Say what several processes reached, where the map stays with one for their efficiency; empty: it does not."""
    prediction, curves = results.prediction, results.scaling.curves if results.scaling else ()
    several = [point for curve in curves for point in curve.points if point.np > 1 and point.speedup.get("steady")]
    best = max(several, key=lambda point: point.speedup["steady"].value, default=None)
    if not (prediction and best and best.efficiency) or best.efficiency.value >= prediction.efficiency_goal:
        return ""
    reached = f"{best.speedup['steady'].value:.2f}x at an efficiency of {format_share(best.efficiency.value)}"
    return f"{plural(best.np, 'process')} reach {reached}, below the goal of {format_share(prediction.efficiency_goal)}"


class Contention(NamedTuple):
    """Compute of a step of several processes that takes longer than a whole step of one."""

    np: int
    compute_s: float
    one_process_s: float  # The median step

    @property
    def words(self) -> str:
        """The two times, and why they differ."""
        return (
            f"Compute takes {format_seconds(self.compute_s)} a step on {plural(self.np, 'process')}, "
            f"a whole step of one process {format_seconds(self.one_process_s)}: "
            "the ranks share cores, caches and memory."
        )

    @property
    def do(self) -> str:
        """The first thing to change."""
        return "Use fewer threads per rank or fewer ranks per host, or a machine with more cores"


def contention_of(results: Results) -> Contention | None:
    """The contention of a traced launch on CPUs, next to one process with the same batch per process."""
    traced, measured = results.explanations[-1:], results.measurement
    parts = traced[0].accounting if traced else None
    if not measured or not parts or not parts.compute_s or traced[0].device != "cpu" or len(traced[0].ranks) < 2:
        return None
    np, batch = len(traced[0].ranks), results.traced_batches[-1]
    of_ones = [run.step_s for run in measured.runs if run.point.np == 1 and run.point.batch == batch]
    nodes = [run.nodes for run in measured.runs if run.point.np == np]
    if not of_ones or "weak" not in measured.scaling or max(nodes, default=1) >= np:  # no two ranks on one host
        return None
    one_process_s = median(of_ones)
    return Contention(np, parts.compute_s, one_process_s) if parts.compute_s >= _SHARED * one_process_s else None


def _mismatches(results: Results) -> list[str]:
    """Warnings where results next to the setting are of another batch, or of steps of another length."""
    setting, told = setting_of(results), []
    if cell := setting.cell:
        curves = results.scaling.curves if results.scaling else ()
        batches: dict[str, set[Any]] = {
            "scaling": {point.batch for curve in curves for point in curve.points},
            "where the time goes": set(results.traced_batches[-1:]),
        }  # None: a script's own, which may be any
        if other := [name for name, known in batches.items() if known and not known & {cell.batch, None}]:
            again = f"measure and explain with --batch {cell.batch:g}"
            told.append(f"not of the setting above, but of another batch: {listed(other)}; {again}")
    traced, point = results.explanations[-1:], setting.point
    if traced and traced[0].step_s and point and point.step_s and point.np == len(traced[0].ranks):
        own_s, measured_s = traced[0].step_s, point.step_s.value
        if not 1 / _ALIKE < own_s / measured_s < _ALIKE:
            took = f"{format_seconds(own_s)}, a measured one {format_seconds(measured_s)}"
            told.append(
                f"a traced step took {took}: where its time goes may not be where theirs goes; explain it again"
            )
    return told


def check_words(results: Results) -> str:
    """`Launched on their own, steps take 36 ms with this setting and 41 ms with the default: 1.14x faster.`"""
    check = results.check
    if check is None or check.ratio is None:
        return ""
    ratio = check.ratio
    sure = f" ({1 / ratio.high:.2f} to {1 / ratio.low:.2f})" if ratio.low < ratio.high else ""
    verdict = {
        "faster": "confirmed",
        "slower": "NOT confirmed, it is slower",
        "same": f"within {format_share(TOLERANCE)}",
    }
    return (
        f"Launched on their own, steps take {format_seconds(check.b)} with the tuned setting and "
        f"{format_seconds(check.a)} with the default: {1 / ratio.value:.2f}x{sure}, "
        f"{verdict.get(check.verdict, 'not decided')}."
    )


# --- the parts of a study ---


def omission_lines(results: Results) -> list[str]:
    """List what the budget did not hold, and what failed and why, a line each."""
    study = results.study
    if study is None:
        return []
    lines = [
        f"{PART_NAMES.get(part.name, part.name)} failed: {plain(part.why, 300)}"
        for part in study.parts
        if part.state == "failed"
    ]
    if study.left_out:
        names = listed([PART_NAMES.get(part.name, part.name) for part in study.left_out])
        resumes = f"; Next resumes {results.purpose}" if results.purpose.startswith("with") else ""
        lines.append(f"left out for lack of time: {names}{resumes}")
    if results.purpose.startswith("when"):
        lines.insert(0, f"Next is {results.purpose}")
    return lines


# --- how to repeat it, and how to write about it ---

_RUNS = (
    Column("verb", "verb", words=True),
    Column(lambda done: plain(done.folder, 80), "folder", words=True),
    Column(lambda done: plain(done.command, 2000) or None, "command", words=True),
    Column("seed", "seed"),
)
_PARTS = (
    Column("name", "part", words=True),
    Column(lambda part: part.planned_s or None, "expected", write=format_seconds),
    Column(lambda part: part.used_s or None, "took", write=format_seconds),
    Column(lambda part: ": ".join(filter(None, (part.state, plain(part.why, 300)))), "outcome", words=True),
)
_FACTS = (Column(itemgetter(0), "what", words=True), Column(itemgetter(1), "here", words=True))


def _environment(results: Results) -> Section:
    """Section on what was typed, with which seed; on which machine and with which versions."""
    parts = results.study.parts if results.study else ()
    facts = [(name, plain(value, 300)) for name, value in machine_facts(results)]
    tables = [
        Table(_RUNS, results.done, "What was run"),
        Table(_PARTS, parts, "Parts of the study"),
        Table(_FACTS, facts, "Hardware and versions"),
    ]
    return Section("environment", "To reproduce it", tables=tables, on_terminal=False)


def machine_facts(results: Results) -> list[tuple[str, str]]:
    """Hardware, versions and settings by name, as far as they are known."""
    known = next((each.fingerprint for each in results.done if each.fingerprint), None)
    measured, cluster, prediction = results.measurement, results.cluster, results.prediction
    facts: dict[str, Any] = {}
    if known:
        facts |= {"host": known.host, "CPU": known.cpu, "cores that a job may use": known.cores}
        facts |= {"GPUs": ", ".join(known.gpus), "Python": known.python, "PyTorch": known.torch}
    if measured:
        facts |= {"host": measured.host, "cores that a job may use": measured.cores, "PyTorch": measured.torch}
        facts["launcher"] = ", ".join(f"{engine}: {name}" for engine, name in measured.launcher.items())
        facts |= {"binding": measured.binding, "measured on": measured.created, "scalescope": measured.scalescope}
    if prediction:
        facts["knobs of the map"] = ", ".join(f"{name}={value}" for name, value in prediction.knobs.values.items())
        facts["threads per rank"] = prediction.threads_per_rank
    if cluster:
        size = f"{plural(cluster.nodes, 'node')} of {plural(cluster.slots_per_node, 'slot')}"
        facts["cluster of the map"] = f"{cluster.name or 'this machine, probed'}: {size}, {cluster.device}"
    return [(name, str(value)) for name, value in facts.items() if value not in ("", None)]


def method_words(results: Results) -> str:
    """Say how the numbers came about, as a methods section says it."""
    said = []
    if (measured := results.measurement) and measured.runs:
        counts = Counter(run.point for run in measured.runs).values()
        fewest, most = min(counts), max(counts)
        times = plural(most, "time") if fewest == most else f"{fewest} to {most} times"
        intervals = f"{percent(MEASURED)} t-intervals over launches"
        if most < FEWEST:
            intervals = "ranges from the smallest to the largest launch"
        elif fewest < FEWEST:
            intervals += f", or ranges where there are fewer than {FEWEST}"
        steps = min(run.steps - run.warmup_steps for run in measured.runs)
        said.append(
            f"Every configuration was launched {times} in shuffled rounds; throughput is work over elapsed time "
            f"in steady state ({plural(steps, 'step')} or more per launch after the warm-up), and intervals are "
            f"{intervals}."
        )
    if results.prediction:
        checks = len(with_measured(results.prediction, results.scaling).checks)
        verified = f", verified by running {plural(checks, 'cell')}" if checks else ""
        said.append(f"Step times were predicted from a profile of one process and the cost of collectives{verified}.")
    if results.explanations:
        steps = len({step.index for step in results.explanations[-1].steps})
        said.append(f"{plural(steps, 'step')} were traced and accounted for per rank.")
    if results.tuning and results.tuning.gain:
        pairs = plural(results.tuning.gain.pairs, "interleaved pair")
        said.append(f"The tuned setting was compared with the default in {pairs}.")
    return " ".join(said) or "Name the version with which the results were made."


_BIBTEX = f"""@software{{scalescope,
  title   = {{scalescope: a scaling lab for data-parallel PyTorch training}},
  author  = {{{{The scalescope authors}}}},
  version = {{{__version__}}}
}}"""


# --- JSON: its keys are a contract ---


def _json(results: Results, told: Document, documents: Mapping[str, Document], page: str) -> dict[str, Any]:
    """The JSON of `study`, told by the Document of all and those of its records; a part without results is null."""
    setting, strong = setting_of(results), strong_point(results)
    tuning, check, study = results.tuning, results.check, results.study
    records = {"estimate": "prediction", "measure": "scaling", "explain": "explanation", "tune": "tuning"}
    cell, chosen, pays, engine = setting.cell, setting.chosen, setting.pays, setting.engine
    expected = {"value": cell.speedup, "low": cell.speedup_low, "high": cell.speedup_high} if cell else None
    return {
        "kind": "study",
        "what": results.what,
        "answer": {
            "np": (chosen.np if pays else 1) if chosen else None,
            "batch": chosen.batch if chosen else None,
            "engine": (engine if pays else NO_ENGINE) if chosen else None,
            "not_faster": None if pays or chosen is None else {"np": chosen.np, "engine": engine},
            "speedup": {"expected": expected, "measured": _fields(setting.steady, "value", "low", "high", "interval")},
            "strong": {
                "np": strong[1].np,
                "global_batch": strong[0].batch,
                "speedup": _fields(strong[1].speedup["steady"], "value", "low", "high", "interval"),
            }
            if strong
            else None,
            "bottleneck": documents["explanation"].answer if "explanation" in documents else None,
            "contention": shared._asdict() if (shared := contention_of(results)) else None,
            "settings": {**tuning.held, **tuning.values} if tuning and tuning.decision == "use" else {},
            "sentence": told.answer,
            "why": told.reasons,
            "do": told.do,
            "warnings": list(told.warnings),
        },
        **{verb: documents[name].json() if name in documents else None for verb, name in records.items()},
        "check": {
            "default_s": check.a,
            "tuned_s": check.b,
            "ratio": _fields(check.ratio, "value", "low", "high"),
            "verdict": check.verdict,
        }
        if check and check.ratio
        else None,
        "budget_s": study.budget_s if study else None,
        "parts": [
            _fields(part, "name", "state", "planned_s", "used_s", "why", "without")
            for part in (study.parts if study else ())
        ],
        "left_out": omission_lines(results),
        "next": results.follow,
        "page": page,
    }


def _fields(record: Any, *names: str) -> dict[str, Any] | None:
    """Fields as they are; null where there is no record."""
    return {name: getattr(record, name) for name in names} if record else None


def report_json(results: Sequence[Results], page: Path, compared: Comparison | None) -> dict[str, Any]:
    """The JSON of `report`: of every training its answer, what is there, and what changed between two."""
    documents = []
    for each in results:
        told = document(each)
        of_curves = {}
        if each.scaling and [run.verb for run in each.done].count("measure") > 1:  # points that no folder holds alone
            of_curves["points"] = document_of(each.scaling, measurement=each.measurement).json()["points"]
        documents.append(
            {
                "name": each.name,
                "what": each.what,
                "holds": sorted(each.kinds),
                "answer": told.answer,
                "why": told.reasons,
                "do": told.do,
                "warnings": list(told.warnings),
                **of_curves,
                "next": each.follow,
            }
        )
    changed = document_of(compared).json() if compared else None
    return {"kind": "report", "page": str(page), "results": documents, "compared": changed}
