"""The phrases that errors of this room share."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_MESSAGE = 200


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean a or b?)` with the names nearest to `name`, or nothing."""
    near = get_close_matches(name, list(known), n=3)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def one_line(error: BaseException) -> str:
    """An exception's own message as one short line; its type where it has no message."""
    lines = str(error).strip().splitlines()
    message = lines[0].strip().rstrip(".") if lines else type(error).__name__
    return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 3] + "..."
