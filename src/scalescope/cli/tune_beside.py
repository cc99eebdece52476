"""The search beside a script that tunes itself: `with scalescope.tuning(model):` starts it on rank 0."""

import os
import sys
import threading
from pathlib import Path

from scalescope.errors import ScalescopeError


def main(folder: Path) -> int:
    """Search until it is decided or the training is over, then say what was found."""
    from rich.console import Console

    from scalescope.cli.tune_report import tell_result
    from scalescope.records.store import load
    from scalescope.report.tuning_progress import TuneProgress
    from scalescope.tuner.context import TRAINING
    from scalescope.tuner.journal import PLAN, TunePlan
    from scalescope.tuner.online import Search
    from scalescope.tuner.search import prepare
    from scalescope.tuner.space import parse_held

    prepare()
    request = load(folder / PLAN, TunePlan).request
    console = Console(stderr=True)
    over = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(over,), daemon=True).start()
    held = parse_held("ddp", request.hold)
    try:
        with TuneProgress(console, quiet=False, show_output=False) as progress:
            search = Search(request, folder, folder / TRAINING, held, progress, over.is_set)
            search.run()
        tell_result(search.found(), request, folder, console, json=False, quiet=False)
    except ScalescopeError as problem:
        if not search.has_given_up:  # or it has been said
            print(f"scalescope: {problem}", file=sys.stderr)
        return problem.exit_code
    return 0


def _wait_for_the_end(over: threading.Event) -> None:
    """Rank 0 holds the other end of our input, until it closes it or dies."""
    while os.read(0, 4096):  # not through sys.stdin, whose lock would be in the way when this process ends first
        pass
    over.set()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
