"""Lab 11 in small: resnet101 and vgg19 at 32x32 on Horovod, the same work on 1 and 2 processes, three speedups."""

import subprocess
from pathlib import Path
from typing import Any

from benchmarks.command import scalescope_words
from scalescope.records.scaling import SPEEDUPS, Scaling
from scalescope.records.store import load

FOLDER = Path("results") / "bench" / "lab11"
MODELS = {"resnet101": "4", "vgg19": "16"}  # And the global batch


def run() -> list[dict[str, Any]]:
    rows = []
    for model, batch in MODELS.items():
        folder = FOLDER / model
        if (folder / "plan.json").exists():
            words: tuple[str, ...] = ("--resume", str(folder))
        else:
            words = (model, "--input", "3x32x32", "--engine", "horovod", "--np", "1,2", "--batch", batch)
            words = (*words, "--scaling", "strong", "--launches", "5", "-o", str(folder))
        subprocess.run(scalescope_words("measure", *words), check=True, stdout=subprocess.DEVNULL)
        curve = load(folder / "scaling.json", Scaling).curves[0]
        for point in curve.points:
            speedups = {name: point.speedup[name] for name in SPEEDUPS}
            rows.append(
                {
                    "model": model,
                    "engine": point.engine,
                    "np": point.np,
                    **{name: f"{each.value:.2f} ({each.low:.2f}-{each.high:.2f})" for name, each in speedups.items()},
                    "90 % needs x longer": point.longer_for_90.get("end_to_end"),
                }
            )
    return rows
