"""What somebody needs to repeat results and to write about them: machine, versions, commands, method, citation."""

from typing import Any

from scalescope import __version__
from scalescope.records.results import Results
from scalescope.records.run import Measurement
from scalescope.report.study_parts import part_rows
from scalescope.report.tables import Table
from scalescope.stats import MEASURED, percent
from scalescope.text import plain, plural


def environment_rows(results: Results) -> dict[str, Any]:
    """What was typed, with which seed; on which machine and with which versions."""
    done = [
        [
            each.verb,
            plain(each.folder, 80),
            plain(each.command, 2000) or "-",
            "-" if each.seed is None else str(each.seed),
        ]
        for each in results.done
    ]
    tables = [Table("What was run", ["verb", "folder", "command", "seed"], done)] if done else []
    if results.study:
        rows = part_rows(results.study)
        tables.append(Table("Parts of the study", rows[0], rows[1:]))
    facts = machine_facts(results)
    if facts:
        tables.append(Table("Hardware and versions", ["", ""], [[name, plain(value, 300)] for name, value in facts]))
    return {"tables": tables}


def machine_facts(results: Results) -> list[tuple[str, str]]:
    """Hardware, versions and settings by name, as far as they are known."""
    known = next((each.fingerprint for each in results.done if each.fingerprint), None)
    measured, cluster = results.measurement, results.cluster
    facts: dict[str, Any] = {}
    if known:
        facts |= {"host": known.host, "CPU": known.cpu, "cores that a job may use": known.cores}
        facts |= {"GPUs": ", ".join(known.gpus), "Python": known.python, "PyTorch": known.torch}
    if measured:
        facts |= {"host": measured.host, "cores that a job may use": measured.cores, "PyTorch": measured.torch}
        facts["launcher"] = ", ".join(f"{engine}: {name}" for engine, name in measured.launcher.items())
        facts |= {"binding": measured.binding, "measured on": measured.created, "scalescope": measured.scalescope}
    if results.prediction:
        knobs = results.prediction.knobs.values
        facts["knobs of the map"] = ", ".join(f"{name}={value}" for name, value in knobs.items())
        facts["threads per rank"] = results.prediction.threads_per_rank
    if cluster:
        size = f"{plural(cluster.nodes, 'node')} of {plural(cluster.slots_per_node, 'slot')}"
        facts["cluster of the map"] = f"{cluster.name or 'this machine, probed'}: {size}, {cluster.device}"
    for explanation in results.explanations[-1:]:
        facts["traced"] = f"{explanation.kind}, {plural(len(explanation.files), 'file')}"
    if results.tuning:
        facts["tuned on"] = results.tuning.created
    return [(name, str(value)) for name, value in facts.items() if value not in ("", None)]


def method_words(results: Results) -> str:
    """How the numbers came about, as a methods section says it."""
    said = [_of_measurement(results.measurement)] if results.measurement else []
    if results.prediction:
        checks = len(results.prediction.checks)
        verified = f", verified by running {plural(checks, 'cell')}" if checks else ""
        said.append(f"Step times were predicted from a profile of one process and the cost of collectives{verified}.")
    if results.explanations:
        steps = {step.index for step in results.explanations[-1].steps}
        said.append(f"{plural(len(steps), 'step')} were traced and accounted for per rank.")
    if results.tuning and results.tuning.gain:
        pairs = plural(results.tuning.gain.pairs, "interleaved pair")
        said.append(f"The tuned setting was compared with the default in {pairs}.")
    return " ".join(said) or "Name the version with which the results were made."


def _of_measurement(measured: Measurement) -> str:
    launches: dict[Any, int] = {}
    for run in measured.runs:
        launches[run.point] = launches.get(run.point, 0) + 1
    counts = sorted(set(launches.values()))
    each = "" if not counts else f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    steps = min((run.steps - run.warmup_steps for run in measured.runs), default=0)
    return (
        f"Every configuration was launched {each} times in shuffled rounds; throughput is work over elapsed time in "
        f"steady state ({plural(steps, 'step')} or more per launch after the warm-up), and intervals are "
        f"{percent(MEASURED)} t-intervals over launches."
    )


def citation() -> str:
    """An entry for BibTeX."""
    return "\n".join(
        [
            "@software{scalescope,",
            "  title   = {scalescope: a scaling lab for data-parallel PyTorch training},",
            "  author  = {{The scalescope authors}},",
            f"  version = {{{__version__}}}",
            "}",
        ]
    )
