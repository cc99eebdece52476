"""scalescope doctor: what this machine has, what is missing and how to get it."""

from typing import Annotated

import typer


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout, everything else on stderr.")
    ] = False,
) -> None:
    """Show what this machine has for data-parallel training, what is missing and how to get it."""
    import sys

    from scalescope.jobs.machine import check_up, describe_machine
    from scalescope.records.store import encode
    from scalescope.report.machine import print_checkup

    checkup = check_up(describe_machine())
    print_checkup(checkup, sys.stderr if as_json else sys.stdout)
    if as_json:
        sys.stdout.write(encode(checkup).decode())
