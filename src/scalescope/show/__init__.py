"""Results for people and their programs: a Document by record, and what renders it."""

from importlib import import_module
from typing import Any

from scalescope.show.document import Document

# The file of this room that describes a record, by the record's type.
_DOCUMENTS = {
    "Scaling": "scaling",
    "Prediction": "prediction",
    "Explanation": "explanation",
    "Tuning": "tuning",
    "Autotune": "autotune",
    "Cluster": "cluster",
    "Comparison": "comparison",
    "Checkup": "checkup",
    "Submission": "submission",
    "Results": "study",
}


def describes(record: Any) -> bool:
    """True if there is a Document of such a record."""
    return type(record).__name__ in _DOCUMENTS


def document_of(record: Any, **context: Any) -> Document:
    """The Document of a record; `context` as the record's file in this room takes it."""
    module = import_module(f"scalescope.show.{_DOCUMENTS[type(record).__name__]}")
    document: Document = module.document(record, **context)
    return document
