"""Files that are made to hurt: one line each, exit code 2."""

import gzip
import json
import re
from pathlib import Path

import pytest

from command_line import CommandLine

KEPT = Path(__file__).parents[1] / "data" / "kept"
DEEP = "[" * 10_000 + "]" * 10_000
SAMPLE = Path(__file__).parents[1] / "data" / "traces" / "kineto" / "gloo_small" / "rank0.json.gz"


def of_kind(kind: str) -> str:
    return f'{{"kind": "{kind}", "version": 1, "x": {DEEP}}}'


def trace(**facts: int) -> str:
    raw = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    return json.dumps({**raw, "distributedInfo": {**raw["distributedInfo"], **facts}})


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("deep.json", of_kind("measurement"), ("explain",)),
        ("deep.json", DEEP, ("explain",)),
        ("deep.json", of_kind("profile"), ("estimate", "mlp", "--profile")),
        ("deep.json", of_kind("tuning"), ("tune", "mlp", "--start-from")),
        ("plan.json", of_kind("plan"), ("measure", "--resume")),
        ("plan.json", of_kind("tune_plan"), ("tune", "--resume")),
        ("deep.toml", f"name = {DEEP}", ("estimate", "mlp", "--cluster")),
        ("endless.toml", f"nodes = {'1' * 5000}", ("estimate", "mlp", "--cluster")),
        ("sexagesimal.yaml", f"ddp:\n  bucket_cap_mb: 1{':5' * 150_000}\n", ("tune", "mlp", "--config-file")),
        ("sexagesimal.yaml", f"? 1{':5' * 150_000}\n: 1\n", ("tune", "mlp", "--config-file")),
    ],
    ids=lambda value: value if len(value) < 40 and isinstance(value, str) else "",
)
def test_one_line_and_exit_code_2(scalescope: CommandLine, name: str, text: str, words: tuple[str, ...]) -> None:
    (scalescope.folder / name).write_text(text)
    given = "." if name == "plan.json" else name
    done = scalescope.in_this_process(*words, given, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("scalescope: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert name in done.stderr


IMPOSSIBLE = "Epoch 1 took {0} s\nEpoch 2 took 1.5 s\nEpoch 3 took 1.6 s\n"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.log", IMPOSSIBLE.format("1e308"), ("--np", "2")),
        ("a.log", IMPOSSIBLE.format("1e-200"), ("--np", "2")),
        ("a.log", "1e300 images/sec\n120 images/sec\n", ("--np", "2")),
        ("a.log", "it took nan\nit took 3\n", ("--np", "2", "--pattern", r"took (?P<epoch_s>\S+)")),
        ("a.csv", "np,train_s\n1,1e308\n2,1e307\n", ()),
        ("a.csv", "np,train_s\n1,1e-300\n2,2\n", ()),
        ("a.csv", "np,images/s\n1,1e300\n2,2e3\n", ()),
        ("a.csv", "np,train time (ms)\n1,1e-11\n2,2\n", ()),
    ],
)
def test_numbers_that_no_training_has_are_refused(
    scalescope: CommandLine, name: str, text: str, words: tuple[str, ...]
) -> None:
    (scalescope.folder / name).write_text(text)
    done = scalescope.in_this_process("explain", name, *words, "--json", code=2)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert re.search(rf"'{name}' line [12]\b", done.stderr)


@pytest.mark.parametrize("field", ["wall_s", "step_s", "mean_step_s"])
def test_a_measurement_with_times_that_no_launch_has_is_refused(scalescope: CommandLine, field: str) -> None:
    record = json.loads((KEPT / "study" / "measure" / "measurement.json").read_text())
    for run in record["runs"]:
        run[field] = 1e308
    (scalescope.folder / "measurement.json").write_text(json.dumps(record))
    done = scalescope.in_this_process("explain", "measurement.json", code=2)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert re.search(rf"measurement.json is not a readable .*{field}", done.stderr)


def test_scores_that_no_training_has_are_left_out(scalescope: CommandLine) -> None:
    header = "cycle_time_ms,tensor_fusion_threshold,score\n"
    rows = "5,4,29.9\n10,4,1e300\n50,32,44.1\n25,16,1e-300\n25,8,77.8\n"
    (scalescope.folder / "autotune.csv").write_text(header + rows)
    document = json.loads(scalescope.in_this_process("explain", "autotune.csv", "--json").stdout)
    assert document["lost"]["events"] == 2


@pytest.mark.parametrize("said", [{"rank": 10**30}, {"world_size": 10**30}], ids=str)
def test_a_trace_of_an_impossible_rank_is_one_of_an_unknown_rank(scalescope: CommandLine, said: dict[str, int]) -> None:
    (scalescope.folder / "rank.json").write_text(trace(**said))
    found = json.loads(scalescope.in_this_process("explain", "rank.json", "--json").stdout)
    assert found["ranks"] == 1
    assert found["steps"] == 4
