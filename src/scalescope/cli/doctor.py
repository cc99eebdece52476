"""`scalescope doctor`: what this machine has, what is missing and how to get it."""

import sys

from scalescope.cli.options import Json


def doctor(json: Json = False) -> None:
    """Show what this machine has for data-parallel training, what is missing and how to get it."""
    from scalescope.jobs.machine import check_up, describe_machine
    from scalescope.records.store import encode
    from scalescope.show import document_of, terminal

    checkup = check_up(describe_machine())
    document, console = document_of(checkup), terminal.open_console(stderr=json, highlight=False, markup=False)
    terminal.say(console, document.answer, "bold")
    terminal.show(document, console, details=True)
    console.print(f"Next: {checkup.next_command}", soft_wrap=True)
    if json:
        sys.stdout.write(encode(checkup).decode())
