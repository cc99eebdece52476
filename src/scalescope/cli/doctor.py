"""`scalescope doctor`: what this machine has, what is missing and how to get it."""

import sys

from scalescope.cli.options import Json


def doctor(json: Json = False) -> None:
    """Show what this machine has for data-parallel training, what is missing and how to get it."""
    from scalescope.jobs.machine import check_up, describe_machine
    from scalescope.records.store import encode
    from scalescope.report.machine import print_checkup

    checkup = check_up(describe_machine())
    print_checkup(checkup, sys.stderr if json else sys.stdout)
    if json:
        sys.stdout.write(encode(checkup).decode())
