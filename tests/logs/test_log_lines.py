"""Lines of logs that tell something, how many processes wrote them, and logs that cannot be read."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from published import epochs, values
from scalescope.errors import UsageError
from scalescope.logs.counts import count_in_name
from scalescope.logs.curves import read_logs

# Lines that are understood


LINES = {
    "Epoch {0}:  training {1:.2f}(s) - testing 0.28(s)": 1.0,
    "Epoch {0} took {1:.2f} s": 1.0,
    "2026-01-01 INFO epoch: {0} loss: 0.512 time: {1:.2f}s": 1.0,
    "epoch {0}/10 | loss 0.5 | time {1:.2f} sec | eta 900 s": 1.0,
    "Epoch {0} finished in {1:.2f} seconds, validation took 99 s": 1.0,
    "Epoch {0} done, train_time={1:.2f}s test_time=0.4s": 1.0,
    "Epoch: [{0}] Total time: 0:01:{1:02.0f} (0.0834 s / it)": 61.0,
    "Epoch {0}: 100%|####| 391/391 [01:{1:02.0f}<00:00,  7.77it/s, loss=0.5]": 61.0,
}


@pytest.mark.parametrize("line", LINES)
def test_epoch_lines_of_several_frameworks_are_read(logs, line: str) -> None:
    times = [12.0, 8.0, 8.0, 8.0, 8.0]
    noise = "Epoch: [3][ 10/5005] Time 0.205 (1.2) Data 0.1\nTrain Epoch: 1 [640/60000 (1%)] Loss: 2.3\n"
    text = noise + "".join(line.format(index, time) + "\n" for index, time in enumerate(times, start=1))
    point = logs(n1=text).curves[0].points[0]
    offset = 60.0 if LINES[line] > 60 else 0.0
    assert point.step_s is not None
    assert point.step_s.value == pytest.approx(8 + offset, abs=0.01)
    assert point.train_s == pytest.approx(sum(times) + 5 * offset)


def test_a_bar_that_overwrites_itself_counts_once(logs) -> None:
    bar = "".join(
        f"\rEpoch {n}:  50%|##  | 5/10 [00:02<00:02, 2.50it/s]\rEpoch {n}: 100%|####| 10/10 [00:04<00:00, 2.50it/s]"
        f"\rEpoch {n}: 100%|####| 10/10 [00:04<00:00, 2.50it/s, v_num=0]"
        for n in range(4)
    )
    point = logs(n1=bar).curves[0].points[0]
    assert (point.steps, point.train_s) == (4, pytest.approx(16))


@pytest.mark.parametrize(
    ("ending", "seconds"),
    [
        ("00:25<00:00,  2.54s/it", 25.4),
        ("00:25<00:00,  2.54S/it", 25.4),
        ("00:04<00:00,  2.27it/s", 10 / 2.27),
        ("01:02:03<00:00, 372.35s/it", 3723.5),
        ("00:25<00:00,  9.99s/it", 25.0),
        ("00:25<00:00,  0.00it/s", 25.0),
    ],
)
def test_an_epoch_of_a_bar_is_timed_by_its_pace_where_that_fits_its_seconds(logs, ending: str, seconds: float) -> None:
    bars = "".join(f"Epoch {number}: 100%|####| 10/10 [{ending}]\n" for number in range(4))
    assert logs(n1=bars).curves[0].points[0].train_s == pytest.approx(4 * seconds)


@pytest.mark.parametrize(
    ("lines", "steady", "says"),
    [
        (("Img/sec per GPU: 200 +-0.5", "Img/sec per GPU: 190.0 +-1"), 3.8, ""),
        (("Total img/sec on 1 GPU(s): 200.1 +-3", "Total img/sec on 4 GPU(s): 700"), 700 / 200.1, ""),
        (("Iter #1: 9 img/sec per GPU\nTotal img/sec on 1 GPU(s): 10", "Total img/sec on 4 GPU(s): 30"), 3, ""),
        (("100 images/sec", "380.0 images/sec"), 3.8, "read as the total of all"),
        (("samples/s: 100", "samples/s: 95"), 3.8, "read as per worker"),
        (("examples/sec = 1,000", "examples/sec = 950"), 3.8, "read as per worker"),
        (("step 9, loss 2.3, 1000 tokens/s", "step 9, loss 2.3, 3,800 tokens/s"), 3.8, "read as the total"),
        (("eval 5 images/sec\n100 images/s per GPU", "95 images/s per GPU"), 3.8, ""),
        (("average_example_per_sec: 202.1", "average_example_per_sec: 191.995"), 3.8, "read as per worker"),
        (("INFO: average_examples_per_sec = 202", "INFO: average_examples_per_sec = 191.9"), 3.8, "read as per worker"),
        (("Average examples/sec: 202 (195), step = 9", "Average examples/sec: 191.9 (9), step = 9"), 3.8, "per worker"),
    ],
    ids=range(11),
)
def test_rate_lines_of_several_frameworks_are_read(logs, lines: tuple[str, str], steady: float, says: str) -> None:
    scaling = logs(n1=lines[0], n4=lines[1])
    assert values(scaling, "steady")[4] == pytest.approx(steady)
    assert not values(scaling, "train")
    assert says in "\n".join(scaling.findings)
    assert ("read as" in "\n".join(scaling.findings)) == bool(says)


def test_a_single_log_with_a_bare_rate_is_read_as_the_total(logs) -> None:
    scaling = logs(n4="100 images/sec\n" * 5)
    (point,) = scaling.curves[0].points
    assert point.throughput is not None
    assert point.throughput.value == pytest.approx(100)
    assert any("the rate is 100 at np 4: read as the total of all" in finding for finding in scaling.findings)


def test_the_whole_training_of_a_hugging_face_trainer(logs) -> None:
    line = "{{'train_runtime': {}, 'train_samples_per_second': 190.3, 'epoch': 3.0}}\n"
    scaling = logs(n1=line.format(100), n2=line.format(60) + "  train_runtime  =  0:01:00.00\n")
    assert values(scaling, "train")[2] == pytest.approx(100 / 60)
    assert not values(scaling, "steady")


@pytest.mark.parametrize(
    ("pattern", "line", "steady"),
    [
        (r"E(?P<epoch>\d+) (?P<epoch_s>[\d.]+)/(?P<test_s>[\d.]+)", "E{n} {time:.3f}/0.1", 2.0),
        (r"step (?P<step_s>\S+)", "step {time:.3f}", 2.0),
        (r"now (?P<examples_per_s>\S+)", "now {rate:.3f}", 2.0),
        (r"all (?P<examples_per_s_total>\S+)", "all {rate:.3f}", 2.0),
        (r"own (?P<examples_per_s_per_worker>\S+)", "own {rate:.3f}", 4.0),
    ],
)
def test_pattern_reads_lines_of_a_users_own(logs, pattern: str, line: str, steady: float) -> None:
    texts = {
        f"n{np}": "".join(line.format(n=n, time=8 / np, rate=10 * np) + "\n" for n in range(1, 7)) for np in (1, 2)
    }
    assert values(logs(pattern=pattern, **texts), "steady")[2] == pytest.approx(steady)


# How many processes wrote it


@pytest.mark.parametrize(
    ("name", "np"),
    [
        ("cifar10-2gpus.log", 2),
        ("cifar10-1gpu.log", 1),
        ("resnet50-np4.out", 4),
        ("n8.txt", 8),
        ("run_4ranks_b32.log", 4),
        ("16procs", 16),
        ("world_size=32.log", 32),
        ("pytorch_cifar10.out.1", 1),
        ("8gpus-2.log", 8),
        ("resnet50-gpus-4.log", 4),
    ],
)
def test_process_count_is_read_from_a_label_in_the_name(tmp_path: Path, name: str, np: int) -> None:
    assert count_in_name(tmp_path / name) == np


@pytest.mark.parametrize(
    "name",
    [
        *("train.log", "resnet50-b32.log", "4x8gpus.log", "2gpus-4ranks.log", "2026-01-02.log", "slurm-123456.out"),
        *("train-4.log", "resnet_8.log", "slurm-123456-2.out", "run2.log", "job-123456-8-workers.log"),
    ],
)
def test_a_name_without_a_label_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="add --np"):
        count_in_name(tmp_path / name)


def test_np_overrules_names(logs) -> None:
    scaling = logs(np=(3, 1), a2=epochs([4] * 5), b7=epochs([9] * 5))
    assert [point.np for point in scaling.curves[0].points] == [1, 3]


# Logs that are odd, or no use


def test_a_very_long_line_is_cut(logs) -> None:
    text = "x" * 3_000_000 + " Epoch 1 took 99 s\n" + epochs([3, 2, 2, 2]) + "\r" * 100_000
    assert logs(n1=text).curves[0].points[0].train_s == 9


@pytest.mark.parametrize("junk", ["epoch 1 " + "a " * 9000, "epoch 1 " + "time 1,1" * 900, "1," * 9000 + " images/s"])
def test_long_lines_take_no_long_time(tmp_path: Path, junk: str) -> None:
    path = tmp_path / "n1.log"
    path.write_text(f"{junk}\n" * 300 + epochs([2, 1, 1, 1]))
    begin = time.process_time()
    read_logs([path])
    assert time.process_time() - begin < 20  # it is 2 s; a pattern that backtracks would take hours


def test_a_byte_that_is_not_utf8_is_tolerated_in_logs(tmp_path: Path) -> None:
    (tmp_path / "n1.log").write_bytes(b"Gr\xf6\xdfe 5\n" + epochs([3, 2, 2]).encode())
    assert read_logs([tmp_path / "n1.log"]).curves[0].points[0].train_s == 7


@pytest.mark.parametrize(
    ("texts", "options", "says"),
    [
        ({"n1": "loss 0.5\x1b[0m at step 3\n"}, {}, "a line there is 'loss 0.5 at step 3': write --pattern"),
        ({"n1": "hello\n"}, {"pattern": r"(?P<epoch_s>\d+) s"}, "matches your --pattern"),
        ({"n1": "5 s"}, {"pattern": "("}, "no regular expression"),
        ({"n1": "5 s"}, {"pattern": r"\d+ s"}, "needs a named group that tells times or rates: (?P<epoch_s>"),
        ({"n1": "5 s"}, {"pattern": r"(?P<speed>\d+) s"}, "unknown group 'speed': use (?P<epoch_s>"),
        ({"n1": "took long"}, {"pattern": r"took (?P<epoch_s>\w+)"}, "'long' for epoch_s on line 1"),
        ({"n1": "Epoch 1 took 0.0 s"}, {}, "line 1 says 0 for epoch_s, which no training has"),
        ({"n1": "Epoch 1 took 2 s", "n2": "9 images/s"}, {}, "('n1.log' epoch times, 'n2.log' rates"),
        (
            {"n1": "9 images/s per GPU", "n2": "9 images/s"},
            {},
            "'n2.log' rates without saying whose",
        ),
        ({"n1": "Epoch 1 took 2 s"}, {"np": (1, 2)}, "--np gives 2 counts for 1 logs"),
        ({"n1": ""}, {}, "is empty"),
        ({"n1": "a\0b"}, {}, "no text in UTF-8"),
    ],
    ids=range(12),
)
def test_unreadable_input_is_refused_in_one_line(logs, texts: dict[str, str], options: dict, says: str) -> None:
    with pytest.raises(UsageError) as problem:
        logs(**options, **texts)
    assert says in str(problem.value)
    assert "\n" not in str(problem.value)
    assert "\x1b" not in str(problem.value)


_PIECES = st.sampled_from(
    ["Epoch ", "1", "2", "/10", ": ", "took ", "3.5 s", "100%|#| ", "5/5 [00:04<00:00, 2it/s]", "\r", "\n", "\n",
     "images/sec", " - 12s", "train_runtime", "=", "total ", "per GPU", "0", "training ", "time ", "\x1b[1m",
     "\b", "1,234.5"]
)  # fmt: skip


@given(st.lists(st.one_of(_PIECES, st.text(max_size=3)), max_size=40))
def test_arbitrary_input_raises_usage_errors_only(tmp_path_factory, pieces: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "n1.log"
    path.write_bytes("".join(pieces).encode(errors="replace"))
    try:
        assert read_logs([path]).curves
    except UsageError as problem:
        assert "\n" not in str(problem)  # noqa: PT017
