"""compare: what changed?"""

from pathlib import Path
from typing import TYPE_CHECKING

from scalescope.options import read
from scalescope.progress import Progress
from scalescope.records.files import MEASUREMENT
from scalescope.records.request import CompareRequest
from scalescope.show import document_of
from scalescope.verbs.verb import Ending, Screen, Verb, folder_command, from_here

if TYPE_CHECKING:
    from scalescope.records.comparison import Comparison

SLOWER = 3  # Exit code


def compare(request: CompareRequest, _progress: Progress) -> "Comparison":
    """Compare A with B."""
    from scalescope.studies.compare import compare as compared
    from scalescope.studies.results import read_results

    (first,), (second,) = read_results([request.a]), read_results([request.b])
    return compared(first, second, request.tolerance)


def of_comparison(comparison: "Comparison", request: CompareRequest, _screen: Screen) -> Ending:
    """Both on a page next; more launches first where nothing is decided and they can be had."""
    a, b = Path(request.a), Path(request.b)
    undecided = all(pair.verdict == "undecided" for pair in comparison.decisive)
    if undecided and (b / MEASUREMENT).exists():
        follow = folder_command("measure --resume", b, "--launches", "10")
    else:
        follow = folder_command("report", a, str(from_here(b)), "-o", "report.html")
    return Ending(document_of(comparison), follow, code=SLOWER if comparison.slower else 0)


VERB = Verb(
    "compare",
    CompareRequest,
    """What changed? Times of two results with intervals; exit code 3 when B is slower than the tolerance allows.

    scalescope compare results/yesterday results/today --tolerance 5%
    scalescope compare timeline-mpi.json timeline-nccl.json
    """,
    lambda **given: CompareRequest(**read(CompareRequest, given)),
    compare,
    ("json", "details", "quiet"),
    end=of_comparison,
)
