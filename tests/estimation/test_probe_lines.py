"""From what the ranks of a probe timed to costs and overlap slowdowns."""

from pathlib import Path
from statistics import stdev

import msgspec
import pytest

from scalescope.engines import knobs_of
from scalescope.errors import WorkFailed
from scalescope.estimation.probe import Group, findings, read_lines
from scalescope.estimation.probe_ranks import Around, Idle, Line, Overlapped, Round, Timed, file_of
from scalescope.estimation.probe_ranks import idle as time_idle
from scalescope.records.cluster import BACKENDS, gpu_model
from scalescope.records.store import LineWriter
from scalescope.stats import standard_error

PAIR = Group(backend="gloo", ranks=2, nodes=1)


def timed(seconds: list[float], size: int = 4, operation: str = "allreduce", cpu: float = 0.5) -> Timed:
    return Timed(operation=operation, bytes=size, seconds=seconds, cpu_seconds=[cpu * each for each in seconds])


def overlapped(product: float = 1.0, message: float = 1.0) -> Overlapped:
    """Alone each takes a second."""
    return Overlapped(layer_s=1.0, layer_overlapped_s=product, message_s=1.0, message_overlapped_s=message)


def around(copy: float = 1e-10) -> Around:
    return Around(copy_s_per_byte=copy)


def idle(layer_s: float = 1.0) -> Idle:
    return Idle(layer_s=layer_s, layer_without_s=1.0)


QUIET, BUSY = Round(foreign_cores=0.1), Round(foreign_cores=0.8)


def test_a_collective_takes_as_long_as_its_slowest_rank() -> None:
    (costs,) = findings(PAIR, [[timed([1.0, 2.0, 3.0])], [timed([2.0, 1.0, 6.0], cpu=1.0)]]).costs
    assert (costs.backend, costs.operation, costs.ranks, costs.nodes) == ("gloo", "allreduce", 2, 1)
    assert costs.seconds == (pytest.approx(10 / 3),)  # the mean of 2, 2 and 6
    assert costs.cpu_seconds == (pytest.approx((0.5 + 1 + 1.5 + 2 + 1 + 6) / 6),)
    assert costs.error == 0.10  # one round says nothing about others


def test_the_slowest_tenth_of_repetitions_does_not_count() -> None:
    repetitions = [timed([1.0] * 18 + [3.0, 100.0])]
    (costs,) = findings(PAIR, [repetitions, repetitions]).costs
    assert costs.seconds == (1.0,)


def test_operations_have_costs_of_their_own_in_ascending_sizes() -> None:
    mine: list[Line] = [timed([4.0], 400), timed([1.0], 4), timed([2.0], 8, "broadcast")]
    allreduce, broadcast = findings(PAIR, [mine, mine]).costs
    assert (allreduce.operation, allreduce.sizes_bytes, allreduce.seconds) == ("allreduce", (4, 400), (1.0, 4.0))
    assert (broadcast.operation, broadcast.sizes_bytes, broadcast.seconds) == ("broadcast", (8,), (2.0,))


def test_the_error_is_how_much_rounds_differ() -> None:
    paces = (1.0, 1.1, 0.8)
    rounds = [line for pace in paces for line in (timed([pace, pace]), QUIET)]
    (costs,) = findings(PAIR, [rounds, rounds]).costs
    assert costs.seconds == (1.0,)
    assert costs.error == pytest.approx(standard_error(paces))
    assert costs.error > stdev(paces) / 3**0.5  # three rounds know less about themselves than many


def test_rounds_that_other_programs_disturbed_do_not_count() -> None:
    mine: list[Line] = [timed([1.0]), overlapped(2.0), QUIET, timed([9.0]), overlapped(9.0), BUSY, timed([1.2]), QUIET]
    found = findings(PAIR, [mine, mine])
    assert found.costs[0].seconds == (pytest.approx(1.1),)
    assert found.overlap is not None
    assert found.overlap.compute == 2.0
    assert found.disturbed == ""
    assert found.remark.endswith("rounds were repeated: other programs were busy")


def test_a_probe_without_an_undisturbed_round_is_called_disturbed() -> None:
    mine: list[Line] = [timed([1.0]), BUSY, timed([1.2]), Round(foreign_cores=0.6)]
    found = findings(PAIR, [mine, mine])
    assert found.costs[0].seconds == (pytest.approx(1.1),)
    assert found.disturbed == "other programs kept 0.6 cores or more busy in every round of the probe"
    assert found.remark == "", "it is said once"


def test_the_busiest_host_disturbs_all() -> None:
    two = Group(backend="gloo", ranks=4, nodes=2)
    quiet, busy = [timed([1.0]), QUIET], [timed([1.0]), BUSY]
    assert findings(two, [quiet, quiet, quiet, quiet]).disturbed == ""
    assert findings(two, [quiet, quiet, busy, busy]).disturbed != ""


def test_rounds_that_disagree_are_not_to_be_trusted() -> None:
    mine = [line for pace in (1.0, 2.0, 1.0) for line in (timed([pace]), QUIET)]
    assert findings(PAIR, [mine, mine]).disturbed == "rounds of the probe differ by 40 % (one sigma)"


def test_a_round_that_one_rank_did_not_finish_is_left_out() -> None:
    (costs,) = findings(PAIR, [[timed([1.0]), timed([9.0])], [timed([1.0])]]).costs
    assert costs.seconds == (1.0,)


def test_overlap_is_the_median_of_rounds_over_all_ranks_and_has_errors() -> None:
    def of_rank(*factors: tuple[float, float]) -> list[Line]:
        return [line for pair in factors for line in (timed([1.0]), overlapped(*pair), QUIET)]

    lines = [of_rank((2.0, 1.5), (2.2, 3.0), (9.0, 1.6)), of_rank((2.0, 1.5), (2.2, 3.0), (9.0, 1.6))]
    found = findings(PAIR, lines).overlap
    assert found is not None
    assert (found.backend, found.ranks, found.nodes) == ("gloo", 2, 1)
    assert (found.compute, found.communication, found.idle) == (pytest.approx(2.2), pytest.approx(1.6), 1.0)
    assert found.compute_error == pytest.approx(standard_error([2.0, 2.2, 9.0]))
    assert found.communication_error == pytest.approx(standard_error([1.5, 3.0, 1.6]))
    uneven = findings(PAIR, [of_rank((2.0, 1.0)), of_rank((8.0, 1.0))]).overlap
    assert uneven is not None
    assert (uneven.compute, uneven.compute_error) == (pytest.approx(4.0), 0.1), "one round"


def test_slowdowns_below_one_are_kept() -> None:
    found = findings(PAIR, [[overlapped(0.9, 0.8), idle(0.7)]]).overlap
    assert found is not None
    assert (found.compute, found.communication, found.idle) == pytest.approx((0.9, 0.8, 0.7))


def test_an_engine_whose_threads_sleep_costs_nothing_while_it_is_idle() -> None:
    found = findings(PAIR, [[overlapped(), QUIET, around()]] * 2).overlap
    assert found is not None
    assert (found.idle, found.idle_error) == (1.0, 0.0)


def test_an_engine_that_never_rests_shows_over_ranks_and_rounds() -> None:
    first = [timed([1.0]), overlapped(), QUIET, idle(1.5), timed([1.0]), overlapped(), QUIET, idle(1.6)]
    second = [timed([1.0]), overlapped(), QUIET, idle(1.3), timed([1.0]), overlapped(), QUIET, idle(1.4)]
    found = findings(PAIR, [first, second]).overlap
    assert found is not None
    assert found.idle == pytest.approx((1.4 * 1.5) ** 0.5)
    assert found.idle_error == pytest.approx(standard_error([1.4, 1.5]))


def test_copies_cost_what_the_typical_rank_says() -> None:
    assert findings(PAIR, [[around(1e-10)], [around(9e-10)], [around(2e-10)]]).copy_s_per_byte == 2e-10


def test_operations_that_were_not_timed_are_absent() -> None:
    found = findings(PAIR, [[timed([1.0])], [timed([1.0])]])
    assert found.overlap is None
    assert found.copy_s_per_byte == 0
    assert findings(PAIR, [[around()], [around()]]).costs == ()


@pytest.mark.parametrize(
    ("backend", "engine", "values"),
    [
        ("gloo", "ddp", {"backend": "gloo"}),
        ("nccl", "ddp", {"backend": "nccl"}),
        ("horovod-gloo", "horovod", {"controller": "gloo"}),
        ("horovod-mpi", "horovod", {"controller": "mpi"}),
        ("horovod-nccl", "horovod", {"controller": "mpi"}),
    ],
)
def test_every_backend_belongs_to_an_engine(backend: str, engine: str, values: dict) -> None:
    assert backend in BACKENDS
    assert (knobs_of(backend).engine, knobs_of(backend).values) == (engine, values)


class Together:
    """Ranks that agree at once, and a helper whose blocks take known times."""

    met = 0

    def agree(self, value: int) -> int:
        self.met += 1
        return value

    def pair(self, number: int) -> tuple[float, float]:
        assert self.met == number + 1, "blocks begin at the same time in all ranks"
        return 1.0 + number, 0.5


def test_both_pairs_of_the_idle_helper_are_written(tmp_path: Path) -> None:
    ranks = Together()
    time_idle(ranks, ranks, LineWriter(tmp_path / file_of(0)))  # type: ignore[arg-type]
    (mine,) = read_lines(tmp_path, 1)
    assert mine == [Idle(layer_s=1.0, layer_without_s=0.5), Idle(layer_s=2.0, layer_without_s=0.5)]


def test_lines_come_back_as_they_were_written(tmp_path: Path) -> None:
    lines = [timed([1.0, 2.0]), overlapped(), QUIET, idle(), around()]
    for rank in (0, 1):
        text = "".join(msgspec.json.encode(line).decode() + "\n" for line in lines)
        (tmp_path / file_of(rank)).write_text(text + '{"type":"timed"')
    assert read_lines(tmp_path, 2) == [lines, lines]


def test_a_rank_that_wrote_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / file_of(0)).write_text(msgspec.json.encode(overlapped()).decode() + "\n")
    with pytest.raises(WorkFailed, match="a rank of the probe wrote nothing"):
        read_lines(tmp_path, 2)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA GeForce RTX 4090", None),
        ("", None),
    ],
)
def test_a_gpu_is_known_by_its_name(name: str, model: str | None) -> None:
    assert gpu_model(name) == model
