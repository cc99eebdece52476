"""Workloads to train: built-in models, a user's factory, made-up inputs and targets, loss and optimizer.

Torch is imported when a model is built, not here.
"""

from scalescope.records.profile import WorkloadSpec
from scalescope.workloads.builtin import BUILTINS, Builtin
from scalescope.workloads.checking import check
from scalescope.workloads.inputs import InputSpec, parse_input
from scalescope.workloads.loading import Workload, load, spec_from_options
from scalescope.workloads.references import parse_model_args

__all__ = [
    "BUILTINS",
    "Builtin",
    "InputSpec",
    "Workload",
    "WorkloadSpec",
    "check",
    "load",
    "parse_input",
    "parse_model_args",
    "spec_from_options",
]
