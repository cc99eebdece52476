"""Training logs of any framework: which lines tell something, and what follows from them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from published import CIFAR10, epochs, values
from scalescope.errors import UsageError
from scalescope.logs.curves import read_logs
from scalescope.logs.epochs import break_even_epochs, excess_sentence, first_epoch_excess

# What published logs say


def test_the_first_epoch_of_cifar10() -> None:
    (curve,) = read_logs(CIFAR10).curves
    assert {np: round(excess, 1) for np, excess in first_epoch_excess(curve).items()} == {1: 2.3, 2: 22.2, 4: 21.9}
    assert break_even_epochs(curve) == {2: 27, 4: 18}


def test_the_speedups_of_cifar10() -> None:
    scaling = read_logs(CIFAR10)
    alone, two, four = scaling.curves[0].points
    assert two.efficiency is not None
    assert two.mean_efficiency is not None
    assert four.efficiency is not None
    assert (round(two.efficiency.value, 2), round(two.mean_efficiency, 2)) == (0.92, 0.97)
    assert round(four.efficiency.value, 2) == 0.82
    assert {np: round(value, 2) for np, value in values(scaling, "train").items()} == {1: 1.0, 2: 0.61, 4: 0.70}
    assert "end_to_end" not in four.speedup
    assert alone.phases["evaluation"] == pytest.approx(2.86, abs=0.01)


def test_findings_of_cifar10_name_the_first_epoch_and_two_kinds_of_epochs() -> None:
    findings = read_logs(CIFAR10).findings
    assert (
        "the first epochs cost more than steady ones: 2.31 s at np 1, 22.2 s at np 2 and 21.9 s at np 4; the excess "
        "appears at 2 processes and does not grow: a one-time cost of starting several processes" in findings
    )
    (two_kinds,) = [finding for finding in findings if "two kinds" in finding]
    assert "on 2 processes" in two_kinds
    assert "92 % by the median and 97 % by the mean" in two_kinds
    assert any("same work at every number of processes" in finding for finding in findings)


def test_testing_times_are_reported(logs) -> None:
    told = "testing, per epoch: 286 ms at np 1, 240 ms at np 2 and 154 ms at np 4; "
    assert any(finding.startswith(told) for finding in read_logs(CIFAR10).findings)
    once = logs(n1="Epoch 1: training 2(s) - testing 0.5(s)\nEpoch 2 took 2 s\nEpoch 3 took 2 s\n")
    assert not any("testing" in finding for finding in once.findings)
    silent = logs(n1="".join(f"Epoch {at} took 2 s\n" for at in range(3)))
    assert not any("testing" in finding for finding in silent.findings)


def test_one_text_with_all_logs_under_headings_is_the_same_curve(tmp_path: Path) -> None:
    notes = tmp_path / "timeline-32.md"
    texts = [path.read_text() for path in CIFAR10]
    headings = ("* 1 GPU", "## 2 processes:", "np = 4")
    parts = [f"{head}\n```\n{text}```\n" for head, text in zip(headings, texts, strict=True)]
    notes.write_text("# Timeline\n4 nodes 32 GPU\nno times under this one\n" + "".join(parts))
    together, apart = read_logs([notes]), read_logs(CIFAR10)
    assert values(together, "train") == values(apart, "train")
    assert together.what == "timeline-32.md"
    assert "numbers of processes come from headings: 1, 2 and 4" in together.findings
    with pytest.raises(UsageError, match="tells epoch 1 again"):  # --np overrules headings
        read_logs([notes], [2])


def test_a_heading_over_one_log_does_not_divide_it(tmp_path: Path) -> None:
    for name in ("n2.log", "n4.log"):
        (tmp_path / name).write_text("using\n8 GPUs\n" + "".join(f"Epoch {at} took 2 s\n" for at in range(3)))
    (curve,) = read_logs([tmp_path / "n2.log", tmp_path / "n4.log"]).curves
    assert [point.np for point in curve.points] == [2, 4]


# Planted epochs


@given(
    st.lists(st.floats(0.01, 1e3), min_size=1, max_size=40),
    st.lists(st.floats(0.01, 1e3), min_size=1, max_size=40),
)
def test_train_time_is_the_sum_of_epochs(tmp_path_factory, one: list[float], two: list[float]) -> None:
    folder = tmp_path_factory.getbasetemp()
    for np, times in ((1, one), (2, two)):
        (folder / f"n{np}.log").write_text(epochs(times))
    (curve,) = read_logs([folder / "n1.log", folder / "n2.log"]).curves
    for point, times in zip(curve.points, (one, two), strict=True):
        assert point.train_s == pytest.approx(sum(times))
        assert point.steps == len(times)
        assert sum(point.phases[phase] for phase in ("warmup", "steady")) == pytest.approx(sum(times))


@pytest.mark.parametrize(
    ("excess", "says"),
    [
        ((0.0, 20.0, 21.0, 20.5), "appears at 2 processes and does not grow: a one-time cost"),
        ((0.0, 0.0, 20.0, 21.0), "appears at 4 processes and does not grow"),
        ((2.0, 4.0, 8.0, 16.0), "1.99 s at np 1, 4 s at np 2, 8 s at np 4 and 16 s at np 8"),
        ((5.0, 5.2, 5.1, 4.9), "4.99 s at np 1, 5.2 s at np 2, 5.1 s at np 4 and 4.9 s at np 8"),
        ((0.0, 0.0, 0.0, 0.0), "take no longer than the others"),
    ],
)
def test_the_first_epochs_excess_is_classified(logs, excess: tuple[float, ...], says: str) -> None:
    texts = {}
    for np, more in zip((1, 2, 4, 8), excess, strict=True):
        steady = [4 / np * (1 + 0.002 * (index % 3)) for index in range(12)]
        texts[f"np{np}"] = epochs([steady[0] + more, *steady[1:]])
    scaling = logs(**texts)
    assert says in excess_sentence(scaling.curves[0])
    found = first_epoch_excess(scaling.curves[0])
    assert [found[np] for np in (1, 2, 4, 8)] == pytest.approx(list(excess), abs=0.05)


def test_of_epochs_printed_by_every_process_the_slowest_counts(logs) -> None:
    printed = "".join(
        f"[1,{rank}]<stdout>:Epoch {n} took {n + rank / 10} s\n" for n in range(1, 6) for rank in range(4)
    )
    scaling = logs(one_4ranks=printed)
    assert scaling.curves[0].points[0].train_s == pytest.approx(sum(n + 0.3 for n in range(1, 6)))
    assert any("once per process: the slowest counts" in finding for finding in scaling.findings)


@pytest.mark.parametrize("more", [[5, 4, 4, 4], [5, 4]])
def test_several_trainings_in_one_log_are_refused(logs, more: list[float]) -> None:
    with pytest.raises(UsageError, match=r"'n1.log' line 5 tells epoch 1 again, .*: keep the lines of one training"):
        logs(n1=epochs([9, 9, 9, 9]) + epochs(more))


def test_logs_of_the_same_size_are_repeated_launches(logs) -> None:
    texts = {f"{name}-{np}gpus": epochs([8 / np + more] * 5) for np in (1, 2) for name, more in (("a", 0), ("b", 0.1))}
    scaling = logs(**texts)
    assert [point.launches for point in scaling.curves[0].points] == [2, 2]
    assert scaling.curves[0].points[1].speedup["steady"].low == pytest.approx(8.1 / 4.1)


def test_of_repeated_logs_without_a_partner_all_count(logs) -> None:
    repeated = {f"{name}-np2": epochs([time] * 5) for name, time in (("a", 50.0), ("b", 40.0), ("c", 25.0))}
    train = logs(np1=epochs([100.0] * 5), **repeated).curves[0].points[1].speedup["train"]
    assert (train.low, train.value, train.high) == pytest.approx((2, 2.5, 4))


@pytest.mark.parametrize("name", ["README.md", "np4.log"])
def test_a_text_without_times_says_so_whatever_its_name_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("Run it on 4 GPUs\n")
    with pytest.raises(UsageError, match=rf"no line of '{name}' matches any pattern .* 'Run it on 4 GPUs': write"):
        read_logs([tmp_path / name])
