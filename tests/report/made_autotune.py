"""A log of Horovod's autotune as a record, without the figures that are worked out from it."""

from scalescope.records.autotune import Autotune, Knobs, Sample

KNOBS = Knobs(fusion_threshold_mb=1.0, cycle_time_ms=1.0, switches={})


def autotune() -> Autotune:
    """Three samples, the second of which won."""
    samples = tuple(Sample(line=at, setting=at + 5, knobs=KNOBS, score=1.0) for at in range(3))
    return Autotune(
        file="autotune.csv",
        columns=(),
        samples=samples,
        settings=(),
        finished=True,
        winner=1,
        runner_up=None,
        recommended=0,
        walked=(),
        held={},
        noise=None,
        lead_next=None,
        lead_median=None,
        needed=None,
        luck=None,
        alike=None,
        verdict="unknown",
        default_tried=False,
        cache_not_applied=False,
        environment={},
    )
