"""Meanings of the columns of a scaling table: one pattern each, the first that matches wins."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from scalescope.units import SECONDS_PER

_WORKER = r"(?:process(?:es)?|procs?|np|nprocs?|ranks?|workers?|gpus?|devices?|ntasks)"
_EXAMPLE = r"(?:examples?|ex|images?|imgs?|samples?|sequences?|tokens?|items?)"
_COUNT = r"(?:(?:n|num|number|no|of|total|mpi) )*"
# Headings are matched in lower case with single spaces, `/` as ` per `, without units of time and words such as mean.
MEANINGS = {
    "speedup": r"speed ?ups? train(?:ing)?",
    "recomputed": r".*efficiency.*|.* (?:low|high|ideal|linear)|speed ?ups?(?: .*)?",
    "engine": r"engine|framework",
    "scaling": r"scaling",
    "global_batch": r"(?:global|total|effective) batch(?: ?size)?",
    "worker_batch": rf"(?:local )?batch(?: ?size)? per {_WORKER}|local batch(?: ?size)?",
    "batch": r"batch(?: ?size)?",
    "rate_worker": rf"{_EXAMPLE} per(?: per)? {_WORKER}|(?:throughput|{_EXAMPLE}) per {_WORKER}(?: per)?",
    "rate_total": rf"(?:total|global|aggregate) (?:{_EXAMPLE} per|throughput.*)|{_EXAMPLE} per total",
    "bare_rate": rf"{_EXAMPLE} per|throughput(?: {_EXAMPLE} per)?",
    "np": rf"{_COUNT}{_WORKER}|n|world size",
    "nodes": rf"{_COUNT}(?:nodes?|hosts?)",
    "steps": rf"{_COUNT}steps",
    "step_s": r"(?:time )?(?:per )?(?:step|iter(?:ation)?)(?: time)?",
    "fixed_s": r"fixed",
    "init_s": r"(?:init(?:iali[sz]ation)?|setup|startup)(?: time)?",
    "train_s": r"(?:total )?train(?:ing)?(?: time)?",
    "total_s": r"(?:total|wall|elapsed|job|end to end)(?: ?clock)?(?: time)?|walltime",
}
# Names to suggest when a table has none of them.
KNOWN = "np (or gpus, ranks, workers), init_s, train_s, total_s, examples_per_s_per_worker, examples_per_s_total"
_OURS, _LAST_OF_OURS = "baseline_engine", "what"  # Columns that only scaling.csv has together


def own_columns(heading: Sequence[str]) -> int:
    """Number of columns that are of a scaling.csv of scalescope; what follows them was added by its reader."""
    return heading.index(_LAST_OF_OURS) + 1 if {_OURS, _LAST_OF_OURS} <= set(heading) else 0


class Meaning(NamedTuple):
    """A name among the patterns, and the factor of cells: 0.001 for milliseconds."""

    name: str
    scale: float = 1.0


@lru_cache(maxsize=1000)
def meaning_of(heading: str) -> Meaning | None:
    """The meaning of a heading such as `Train time(s)`, `GPUs` or `img/sec per GPU`; None when it has none here."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", heading[:200].replace("/", " per ")).lower()
    words = re.findall(r"[a-z0-9]+", apart)
    minutes = re.search(r"[(\[/]\s*min", heading)  # else min is the smallest
    units = [word for word in words if word in SECONDS_PER and (word != "min" or minutes)]
    text = " ".join(word for word in words if word not in (*units, "mean", "median", "avg", "average"))
    name = next((name for name, pattern in MEANINGS.items() if re.fullmatch(pattern, text)), None)
    if name is None or (units and name in ("np", "nodes")):  # GPU hours
        return None
    if name == "step_s" and not units and "time" not in words:  # their number
        return None
    scale = SECONDS_PER[units[0]] if units else 1.0
    return Meaning(name, 1 / scale if "rate" in name else scale)
