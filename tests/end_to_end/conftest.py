"""One measurement of a model, on one process and on two, that several tests look at."""

import pytest

from command_line import CommandLine


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandLine, str, str]:
    """Where it was made, into the folder `out`, and what it printed to stdout and to stderr."""
    scalescope = CommandLine(tmp_path_factory.mktemp("measured"))
    limits = ("--steps", "8", "--launches", "2", "--budget", "1s")
    words = ("mlp", "--np", "1,2", "--scaling", "both", "--batch", "8", *limits, "-o", "out", "--json")
    done = scalescope("measure", *words, pictures=True)
    return scalescope, done.stdout, done.stderr
