"""What records of launches tell besides what they hold, and what is known of Horovod's autotune."""

import pytest

from scalescope.engines.horovod import DEFAULT_CACHE, DEFAULT_CYCLE_MS, DEFAULT_FUSION_MB
from scalescope.records.autotune import DEFAULT_SWITCHES
from scalescope.records.run import PHASES, Point, RankSummary, Run


def launched(*hosts: str, phases: dict[str, float] | None = None) -> Run:
    """A launch with one rank on each of these hosts."""
    ranks = [
        RankSummary(rank=at, host=host, pid=at, phases={}, steps=9, samples_per_step=8.0, step_s=0.1)
        for at, host in enumerate(hosts)
    ]
    return Run(
        point=Point(engine="ddp", np=max(len(ranks), 1), batch=8, threads_per_rank=1),
        folder="launches/01",
        wall_s=9.0,
        phases=phases or {},
        steps=9,
        warmup_steps=1,
        step_s=0.1,
        mean_step_s=0.1,
        throughput=None,
        samples_per_step=None,
        engine_seen="ddp",
        backend="gloo",
        source="optimizer",
        ranks=tuple(ranks),
    )


@pytest.mark.parametrize(
    ("names", "nodes"), [((), 1), (("a",), 1), (("a", "a"), 1), (("a", "b", "a", "b"), 2), (("a", "b", "c"), 3)]
)
def test_nodes_are_the_different_hosts_of_the_ranks_and_at_least_one(names: tuple[str, ...], nodes: int) -> None:
    assert launched(*names).nodes == nodes


def test_training_lasts_from_the_first_step_to_the_last() -> None:
    phases = {phase: 10.0**at for at, phase in enumerate(PHASES)}
    around = [phases[phase] for phase in ("launch", "import", "init", "build", "teardown")]
    assert launched(phases=phases).train_s == pytest.approx(sum(phases.values()) - sum(around))
    assert launched(phases={"steady": 2.0}).train_s == 2.0


def test_horovods_defaults_and_what_its_autotune_searches() -> None:
    """As Horovod's operations.cc and parameter_manager.cc have them; what an autotune log means hangs on them."""
    assert (DEFAULT_FUSION_MB, DEFAULT_CYCLE_MS, DEFAULT_CACHE) == (128, 1, 1024)
    assert [name for name, on in DEFAULT_SWITCHES.items() if on] == ["cache_enabled"]
