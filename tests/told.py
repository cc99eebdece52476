"""Progress that keeps what it is told."""

from scalescope.progress import Kind, Progress


class Told(Progress):
    """Keeps stages, steps, notes by their kind, and output."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, float | None, int | None]] = []
        self.steps: list[int] = []
        self.notes: list[str] = []
        self.details: list[str] = []
        self.problems: list[str] = []
        self.lines: list[tuple[str, str]] = []

    def stage(self, what: str, seconds: float | None = None, steps: int | None = None) -> None:
        self.stages.append((what, seconds, steps))

    def advance(self, steps: int) -> None:
        self.steps.append(steps)

    def note(self, text: str, kind: Kind = "plain") -> None:
        {"plain": self.notes, "detail": self.details, "problem": self.problems}[kind].append(text)

    def output(self, source: str, line: str) -> None:
        self.lines.append((source, line))
