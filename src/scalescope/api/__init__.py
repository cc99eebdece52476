"""The verbs as functions: the same answers as on the command line, as records."""

from scalescope.api.explaining import draw, explain, tabulate
from scalescope.api.measuring import doctor, estimate, measure, probe, resume
from scalescope.api.searching import tune
from scalescope.api.silent import Silent
from scalescope.measurement.study import study
from scalescope.simulator.grid import Question, predict
from scalescope.tuner.context import apply_tuned, tuning

__all__ = [
    "Question",
    "Silent",
    "apply_tuned",
    "doctor",
    "draw",
    "estimate",
    "explain",
    "measure",
    "predict",
    "probe",
    "resume",
    "study",
    "tabulate",
    "tune",
    "tuning",
]
