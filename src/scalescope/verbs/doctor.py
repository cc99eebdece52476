"""doctor: what does this machine have?"""

from typing import TYPE_CHECKING, Any

from scalescope.progress import Progress
from scalescope.records.request import DoctorRequest
from scalescope.show import document_of
from scalescope.verbs.verb import Ending, Screen, Verb

if TYPE_CHECKING:
    from scalescope.records.machine import Checkup


def _doctor(_request: DoctorRequest, _progress: Progress) -> "Checkup":
    from scalescope.jobs.machine import check_up, describe_machine

    return check_up(describe_machine())


def of_checkup(checkup: "Checkup", _request: Any, _screen: Screen) -> Ending:
    """Everything that the machine has and lacks."""
    return Ending(document_of(checkup), checkup.next_command, details=True)


VERB = Verb(
    "doctor",
    DoctorRequest,
    """Show what this machine has for data-parallel training, what is missing and how to get it.""",
    DoctorRequest,
    _doctor,
    ("json",),
    end=of_checkup,
)
