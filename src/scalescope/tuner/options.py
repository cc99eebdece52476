"""How a search goes about it, while a training runs and by relaunch."""

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a search goes about it."""

    steps_per_sample: int = 10
    max_samples: int = 12
    """With the default, and with samples that are asked for again."""
    gp_noise: float | None = None
    """Relative standard deviation of a sample; None: as measured."""
    discard: int = 2
    """Steps after a switch that are not measured."""
    check: int = 3
    """Measured steps after which a clearly bad sample is cut."""
    worst: float = 1.5
    """A step that takes so many times the default's is clearly bad."""
    confirm_pairs: tuple[int, int] = (3, 8)
    """Fewest and most."""
    confirm_steps: int = 9
    """With what is discarded and a step of waiting, 8 pairs of blocks take 192 steps."""
    fewest_times: int = 4
    """A block with fewer is asked for again."""
    least_error: float = 0.015
    """Relative error of any sample: what its own steps do not show, such as a slow drift."""


ONLINE = Options()
OFFLINE = Options(
    steps_per_sample=40, discard=0, check=0, confirm_pairs=(3, 6), confirm_steps=40, fewest_times=1, least_error=0.03
)
