"""The map in words: every sentence is true of the map's own cells, and none says more than their intervals show."""

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_predictions import both, predicted, too_large
from rendered import as_markdown, shown

from scalescope.engines.base import MIB
from scalescope.records.cluster import Cluster, Link
from scalescope.records.cluster_file import load_cluster
from scalescope.records.job import Knobs
from scalescope.records.prediction import Cell, Prediction
from scalescope.show import document_of
from scalescope.simulator.grid import Question, predict
from simulator.made import described, proportional

CLUSTERS = Path(__file__).parents[2] / "examples" / "clusters"
SIZES = (1, 2, 4, 8, 16, 32, 64)
MODEL = proportional(*SIZES, sample_s=0.001, gradient_mib=4)  # a millisecond per sample, one message of 4 MiB


def map_words(prediction: Prediction) -> list[str]:
    found: list[str] = document_of(prediction).json()["in_words"]
    return found


def words(cluster: Cluster, np: tuple[int, ...] = (1, 2, 4, 8), model=MODEL, scaling="weak", sizes=SIZES) -> list[str]:
    return map_words(
        predict(
            Question(
                profile=model,
                cluster=cluster,
                knobs=Knobs(engine="ddp"),
                np=np,
                batches=sizes,
                scalings=(scaling,),
            )
        )
    )


def slow_network(mib_per_s: float) -> Cluster:
    """Four nodes of four."""
    return described(1000, slots=4, nodes=4, between=Link(bytes_per_s=mib_per_s * MIB, latency_s=0.0))


def test_one_node_where_small_batches_do_not_pay() -> None:
    pays, larger = words(described(1000))
    assert pays == (
        "2 processes are faster than one with batch 8 to 64 each, slower than one with batch 1 to 2 each; elsewhere "
        "the intervals do not tell: 0.40x (0.34 to 0.47) with batch 1 each to 1.88x (1.72 to 2.06) with batch 64 each."
    )
    assert larger == (
        "Larger batches scale better: 8 processes reach 1.00x (0.84 to 1.19) with batch 1 each and 7.21x "
        "(6.58 to 7.91) with batch 64 each; exposed communication is 88 % of a step and then 10 %."
    )


def test_a_node_boundary_says_where_it_costs_speedup_and_what_is_exposed() -> None:
    _, weak, _ = words(slow_network(100))
    assert weak == (
        "From 4 to 8 processes, which need 2 nodes, speedup is lower with batch 1 to 32 each; elsewhere the intervals "
        "do not tell: 3.37x becomes 2.51x (2.17 to 2.91) with batch 32 each, and exposed communication goes from 6 ms "
        "to 70 ms of a step."
    )
    _, strong, _ = words(slow_network(100), scaling="strong")
    assert "speedup is lower at every batch size: 2.91x becomes 0.82x" in strong
    model = proportional(16, 24, sample_s=0.1, gradient_mib=4)
    _, node, _ = words(slow_network(8), model=model, sizes=(16, 24))
    assert "speedup is higher at every batch size: 3.99x becomes 5.86x (5.30 to 6.49) with batch 24 each" in node
    model = proportional(1, 8, 64, 256, sample_s=0.002, gradient_mib=97)
    cluster = msgspec.structs.replace(load_cluster(CLUSTERS / "dgx1-v100.toml"), device="cpu")
    _, node = words(cluster, (8, 9), model, "strong", (64,))
    assert "speedup is not surely higher: " in node


def test_processes_on_nodes_of_their_own_have_no_boundary() -> None:
    for cluster, np in ((described(1000, slots=1, nodes=4), (1, 2, 4)), (described(1000, slots=4, nodes=2), (8,))):
        assert not [line for line in words(cluster, np=np) if "need" in line]


def test_where_two_processes_never_pay() -> None:
    pays, *_ = words(described(10))
    assert pays == (
        "2 processes are slower than one at every batch size: 0.00x (0.00 to 0.01) with batch 1 each to 0.28x "
        "(0.23 to 0.33) with batch 64 each."
    )


def test_where_two_processes_always_pay_larger_batches_are_not_praised() -> None:
    pays, larger = words(described(1e6))
    assert pays.startswith("2 processes are faster than one at every batch size: 1.99x (1.82 to 2.18)")
    assert larger == (
        "The intervals do not show that larger batches scale better: 8 processes reach 7.94x (7.26 to 8.70) with "
        "batch 1 each and 8.00x (7.31 to 8.76) with batch 64 each; exposed communication is 0.7 % of a step and "
        "then 0.0 %."
    )


def test_a_peak_is_told() -> None:
    prediction = msgspec.structs.replace(predicted(counts=(1, 2)), cells=row([1.1, 1.5, 1.9, 1.4]))
    assert map_words(prediction)[-1].endswith(
        "The most is 1.90x (1.86 to 1.94) with batch 3 each; beyond it speedup falls."
    )
    falling = map_words(msgspec.structs.replace(prediction, cells=row([1.9, 1.8, 1.2])))[-1]
    assert falling.startswith("Larger batches scale worse: 2 processes reach 1.90x (1.86 to 1.94) with batch 1 each")


def row(speedups: list[float], apart: float = 0.04, **more: float) -> tuple[Cell, ...]:
    """Cells of two processes, batch 1, 2, 3 and so on."""
    model = predicted(counts=(2,), batches=(4,)).cells[0]
    return tuple(
        msgspec.structs.replace(
            model,
            batch=batch,
            global_batch=2 * batch,
            speedup=each,
            speedup_low=each - apart,
            speedup_high=each + apart,
            **more,
        )
        for batch, each in enumerate(speedups, start=1)
    )


def claimed(told: str, verb: str, last: int) -> set[int]:
    """The batches that a sentence names after a verb."""
    if f"{verb} than one at every batch size" in told:
        return set(range(1, last + 1))
    found = re.search(rf"{verb} than one with batch ([\d, toand]+) each", told)
    batches: set[int] = set()
    for part in re.split(", | and ", found[1]) if found else []:
        first, *end = (int(each) for each in part.split(" to "))
        batches |= set(range(first, (end or [first])[0] + 1))
    return batches


@given(st.lists(st.sampled_from([0.5, 0.97, 1.0, 1.03, 1.5]), min_size=1, max_size=6))
def test_faster_and_slower_are_said_of_exactly_those_whose_interval_shows_it(speedups: list[float]) -> None:
    prediction = msgspec.structs.replace(predicted(), cells=row(speedups))
    told = map_words(prediction)[0]
    faster = {at for at, each in enumerate(speedups, start=1) if each - 0.04 > 1}
    slower = {at for at, each in enumerate(speedups, start=1) if each + 0.04 < 1}
    assert claimed(told, "faster", len(speedups)) == faster, told
    assert claimed(told, "slower", len(speedups)) == slower, told
    assert ("do not tell" in told or "surely" in told) == (len(faster | slower) < len(speedups)), told


def test_a_jagged_map_is_counted() -> None:
    told = map_words(msgspec.structs.replace(predicted(), cells=row([1.5, 0.5] * 5)))[0]
    assert "faster than one at 5 of 10 batch sizes, slower than one at 5 of 10 batch sizes" in told


def test_what_cannot_be_run_or_trusted_is_not_spoken_of() -> None:
    assert map_words(too_large()) == []
    assert map_words(predicted(counts=(1,))) == []
    assert map_words(msgspec.structs.replace(predicted(), doubts=("busy",))) == []
    cells = row([1.5, 1.5, 0.5])
    unreal = msgspec.structs.replace(predicted(), cells=(*cells[:2], msgspec.structs.replace(cells[2], fits=False)))
    assert "at every batch size" in map_words(unreal)[0]


def test_two_maps_name_themselves() -> None:
    lines = map_words(both())
    assert [line.split(":")[0] for line in lines] == 3 * ["Strong scaling"] + 3 * ["Weak scaling"]


@pytest.mark.parametrize("line", map_words(both()))
def test_terminal_and_markdown_say_the_same_below_each_map(line: str) -> None:
    scaling, _, told = line.partition(": ")
    for text in (shown(both(), 2000), as_markdown(both())):
        strong, weak = text.split("weak scaling")
        assert f"- {told}" in (weak if scaling == "Weak scaling" else strong)
