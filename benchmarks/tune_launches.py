"""A landscape whose every block is a launch of its own, made as `scalescope tune --offline` makes them."""

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.tune_grid import Landscape, Plan, Round, load, measure, save, thinned
from benchmarks.tune_online import settled
from scalescope import host
from scalescope.progress import Progress
from scalescope.records.tuning import TuneRequest, Values
from scalescope.tuner.offline import Launches
from scalescope.tuner.space import offline_space

_SURVEY_AFTER = 10


def landscape_by_launches(
    request: TuneRequest, plan: Plan, folder: Path, chosen: Sequence[Values], until: float
) -> Landscape:
    """The grid, one launch per cell and round, then its best cells once more; a cut one goes on where it was."""
    path, place = folder / "landscape.json", folder / "grid"
    settings, point = settled(request, place)
    launches = Launches(request, settings, point, Progress())
    found = load(path)
    if found is None:
        shutil.rmtree(place, ignore_errors=True)
        survey = _surveyed(launches, place)
        space = offline_space(
            point.engine,
            survey,
            settings.knobs[point.engine].values,
            hosts=["localhost"] * point.np,
            cores=host.cores().physical,
            threads=settings.threads_per_rank or 1,
        )
        space, whole = thinned(space, plan.most_cells, chosen), len(space.settings)
        predicted = space.predict(survey) if survey else None
        found = Landscape(space=space, survey=survey, predicted=predicted, all_settings=whole)
        save(found, path)
    numbers, cells_of = itertools.count(1), found.space.settings

    def measure_round(cells: list[int]) -> Round:
        blocks = {}
        for cell in cells:
            block = launches.make(next(numbers), cells_of[cell])
            blocks[cell] = list(block.step_s)
            if block.problem:
                print(f"{cells_of[cell]}: {block.problem}", flush=True)
        shutil.rmtree(place / "launches", ignore_errors=True)
        return blocks

    measure(found, plan, path, chosen, measure_round, until)
    return found


def _surveyed(launches: Launches, place: Path) -> dict[str, Any] | None:
    first = launches.make(0, {}, {"SCALESCOPE_SURVEY": str(_SURVEY_AFTER)})
    if first.problem:
        raise RuntimeError(first.problem)
    for path in place.glob("launches/*/survey.json"):
        survey: dict[str, Any] = json.loads(path.read_text())
        return survey
    return None
