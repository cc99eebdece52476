import pytest
from fake_system import System

from far_host import far_host

__all__ = ["far_host"]


@pytest.fixture(params=[True, False], ids=["with pidfds", "without pidfds"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> System:
    """Processes on a made-up clock, on a new kernel and on an old one."""
    made = System()
    made.install(monkeypatch, has_pidfds=request.param)
    return made
