"""Progress of long work, as every verb reports it."""

from typing import Literal

Kind = Literal["plain", "detail", "problem"]


class Progress:
    """Progress callbacks of every verb; this one shows nothing, subclasses override what they show."""

    def stage(self, what: str, seconds: float | None = None, steps: int | None = None) -> None:
        """A stage begins, such as a launch.

        Args:
            what: The stage in a few words.
            seconds: About how long it takes until its end, or until the end of all stages where that is known.
            steps: Training steps that it makes, if known.
        """

    def advance(self, steps: int) -> None:
        """The slowest rank has made this many steps in this launch."""

    def note(self, text: str, kind: Kind = "plain") -> None:
        """One line for the user that stays; a detail is for those who asked for them."""

    def output(self, source: str, line: str) -> None:
        """A rank or the launcher printed a line."""
