"""Scaling of PyTorch trainings over processes and GPUs, with DDP, FSDP2 or Horovod."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalescope.api import (
        apply_tuned,
        compare,
        doctor,
        draw,
        estimate,
        explain,
        measure,
        predict,
        probe,
        resume,
        scaling,
        study,
        tabulate,
        tune,
        tuning,
        write_report,
    )

__version__ = "0.1.0"
__all__ = [
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
    """The verbs as functions, imported when they are first used."""
    if name in __all__:
        from scalescope import api

        return getattr(api, name)
    raise AttributeError(f"module 'scalescope' has no attribute '{name}'")
