"""How long it takes until S(2) of the cnn is known within 5 %: turns inside one launch, and whole launches."""

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.command import scalescope

REPEATS = 2


def run() -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for number in range(REPEATS):
            for kind, words in (
                ("--quick", ("--np", "2", "--quick")),
                ("launches", ("--np", "1,2", "--budget", "4m")),
            ):
                words = ("cnn", "--batch", "32", "--precision", "5%", *words, "-o", str(Path(name) / f"{kind}{number}"))
                document, seconds = scalescope("measure", *words)
                point = next(each for each in document["points"] if (each["engine"], each["np"]) == ("ddp", 2))
                steady = point["speedup"]["steady"]
                half = (steady["high"] / steady["low"]) ** 0.5 - 1
                rows.append(
                    {
                        "way": kind,
                        "wall, s": seconds,
                        "launches": len(document["launches"]),
                        "S(2)": steady["value"],
                        "interval": f"{steady['low']:.3f} to {steady['high']:.3f}",
                        "half-width %": 100 * half,
                        "reached 5 %": "yes" if half <= 0.05 else "no",
                    }
                )
                print(f"  {kind}: {seconds:.0f} s, +-{100 * half:.1f} %", flush=True)
    return rows
