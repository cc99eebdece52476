"""`--model-arg name=value`: strings to typed values, by annotation where there is one, otherwise by literal."""

import math
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress

from scalescope.errors import UsageError
from scalescope.records.workload import Scalar

NAMED_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
WORDS: dict[str, bool | None] = {"true": True, "false": False, "none": None}


def parse_model_args(texts: Sequence[str], annotations: Mapping[str, object] | None = None) -> dict[str, Scalar]:
    """Typed constructor arguments from `name=value` texts; `annotations` are the factory's, by argument."""
    arguments: dict[str, Scalar] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(
                f"bad --model-arg {text!r}: write --model-arg name=value, for example --model-arg width=512"
            )
        if name in arguments:
            raise UsageError(f"--model-arg {name} is given twice: keep one of them")
        arguments[name] = parse_value(name, value, (annotations or {}).get(name))
    return arguments


def parse_value(name: str, text: str, annotation: object = None) -> Scalar:
    """The value `text` stands for; an annotation str, int, float or bool (or one of these or None) decides."""
    wanted, optional = scalar_type(annotation)
    if optional and text.lower() == "none":
        return None
    if wanted is None:
        return literal(text)
    if wanted is str:
        return unquoted(text)
    value = literal(text)
    if wanted is float and type(value) is int:
        with suppress(OverflowError):
            value = float(value)
    if type(value) is not wanted:
        example = {int: "64", float: "0.5", bool: "true"}[wanted]
        raise UsageError(
            f"model argument {name}={text} must be {wanted.__name__}: for example --model-arg {name}={example}"
        )
    return value


def scalar_type(annotation: object) -> tuple[type | None, bool]:
    """The one of str, int, float and bool that an annotation names (None: not exactly one), and whether None may be."""
    if isinstance(annotation, str):
        # Annotations that cannot be evaluated (names imported for type checking only) arrive as their source text.
        parts: list[object] = [part.strip() for part in annotation.split("|")]
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = list(typing.get_args(annotation))
    else:
        parts = [annotation]
    named = [NAMED_TYPES.get(part, part) if isinstance(part, str) else part for part in parts]
    optional = any(part in ("None", types.NoneType) for part in named)
    scalars = [part for part in named if part not in ("None", types.NoneType)]
    if len(scalars) == 1 and isinstance(scalars[0], type) and scalars[0] in NAMED_TYPES.values():
        return scalars[0], optional
    return None, False


def literal(text: str) -> Scalar:
    """true, false, none, a finite number, a quoted string, or the text itself."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        # JSON has no infinity: such a value could not reach the ranks.
        if math.isfinite(number := float(text)):
            return number
    return unquoted(text)


def unquoted(text: str) -> str:
    """`text` without one pair of surrounding quotes."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text
