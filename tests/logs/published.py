"""Tables and logs that others have published, and short ways to look at what was read."""

from collections.abc import Sequence
from pathlib import Path

from scalescope.records.scaling import Curve, Scaling

DATA = Path(__file__).parents[2] / "examples" / "data"
LAB11 = DATA / "lab11.csv"
CIFAR10 = [DATA / f"cifar10-{name}.log" for name in ("1gpu", "2gpus", "4gpus")]


def speedups(curve: Curve, name: str) -> dict[int, float]:
    """Of the curve's own engine, by number of processes."""
    own = [point for point in curve.points if point.engine == curve.engine]
    return {point.np: point.speedup[name].value for point in own if name in point.speedup}


def values(scaling: Scaling, name: str) -> dict[int, float]:
    """Of the first curve, by number of processes."""
    return speedups(scaling.curves[0], name)


def epochs(times: Sequence[float], line: str = "Epoch {}: training {}(s) - testing 0.2(s)") -> str:
    """A log of epochs that took these times."""
    return "".join(line.format(index, time) + "\n" for index, time in enumerate(times, start=1))
