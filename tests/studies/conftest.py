import pytest
from recorded_verbs import Verbs

from scalescope.studies import parts


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch) -> Verbs:
    """The verbs that parts of a study call, written down instead of launched."""
    stand_in = Verbs()
    for name in [name for name in vars(Verbs) if not name.startswith("_") and name != "names"]:
        monkeypatch.setattr(parts, name, getattr(stand_in, name))
    return stand_in
