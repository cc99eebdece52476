import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.scaling.warmup import warmup_steps


@pytest.mark.parametrize(
    ("durations", "warmup"),
    [
        ([], 0),
        ([1.0], 0),
        ([2.0, 1.0], 1),
        ([1.0] * 20, 0),
        ([5.0] + [1.0] * 20, 1),
        ([5.0, 5.0, 5.0] + [1.0, 1.1] * 20, 3),
        ([1.0] * 10 + [5.0] * 10, 0),
    ],
)
def test_the_slow_beginning_is_found(durations: list[float], warmup: int) -> None:
    assert warmup_steps(durations) == warmup


def test_noise_alone_is_no_warmup() -> None:
    generator = random.Random(0)
    found = [warmup_steps([generator.lognormvariate(0, 0.05) for _ in range(100)]) for _ in range(50)]
    assert sum(count > 3 for count in found) <= 10


@given(st.lists(st.floats(1e-6, 1e3), max_size=60))
def test_some_steady_steps_always_remain(durations: list[float]) -> None:
    assert 0 <= warmup_steps(durations) <= max(len(durations) - 1, 0)
