"""The errors that users see: one line that names the next action."""


class ScalescopeError(Exception):
    """The work failed; the command line prints the message and exits with `exit_code`."""

    exit_code = 1


class UsageError(ScalescopeError):
    """The request cannot be carried out as it was written."""

    exit_code = 2


class Interrupted(ScalescopeError):
    """The user stopped it; what was finished is kept."""

    exit_code = 130


class Terminated(KeyboardInterrupt):
    """SIGTERM came, or the terminal was closed: nobody asked to give up what goes on elsewhere."""


class StoppedWaiting(KeyboardInterrupt):
    """The user stopped waiting for a job; says what became of it."""


class WorkFailed(ScalescopeError):
    """The request was right and the work went wrong."""
