"""Results of one training in its folders: what was predicted, measured, explained and tuned."""

import msgspec

from scalescope.records.autotune import Autotune
from scalescope.records.cluster import Cluster
from scalescope.records.comparison import Pair
from scalescope.records.explanation import Explanation
from scalescope.records.prediction import Prediction
from scalescope.records.profile import ModelProfile
from scalescope.records.request import Fingerprint
from scalescope.records.run import Measurement
from scalescope.records.scaling import Scaling
from scalescope.records.study import Study
from scalescope.records.timeline import Timeline
from scalescope.records.tuning import Tuning


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a verb, for whoever wants to repeat it."""

    verb: str
    folder: str
    command: str = ""  # As a person types it; empty: not known
    seed: int | None = None
    fingerprint: Fingerprint | None = None


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one training; None where a verb was not asked."""

    name: str  # Of the first folder or file
    prediction: Prediction | None = None
    predicted_step: Timeline | None = None  # Of the recommended cell
    profile: ModelProfile | None = None
    cluster: Cluster | None = None
    measurement: Measurement | None = None
    scaling: Scaling | None = None
    explanations: tuple[Explanation, ...] = ()
    traced_batches: tuple[int | None, ...] = ()  # Per process, of each explanation
    tuning: Tuning | None = None
    settings: tuple[str, ...] = ()  # How to use the setting that was found, a line each
    check: Pair | None = None  # Launches with this setting (b) against launches with the default (a)
    autotune: Autotune | None = None
    study: Study | None = None  # That all of them are parts of
    done: tuple[RunInfo, ...] = ()
    follow: str = ""  # The next command
    purpose: str = ""  # Of the next command of a study: when to type it, or what its time is for
    apart: tuple[str, ...] = ()  # Why it is no curve with other results of the same training
    missing: tuple[str, ...] = ()  # What was begun and is not finished, and how to finish it

    @property
    def what(self) -> str:
        """The model, the command or the file."""
        known = (self.scaling, self.prediction, self.tuning, *self.explanations)
        return next((each.what for each in known if each), self.autotune.file if self.autotune else self.name)

    @property
    def kinds(self) -> frozenset[str]:
        """Names of the answers that are there."""
        there = {
            "prediction": self.prediction,
            "scaling": self.scaling,
            "explanation": self.explanations,
            "tuning": self.tuning,
            "autotune": self.autotune,
        }
        return frozenset(kind for kind, found in there.items() if found)
