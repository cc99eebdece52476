"""A found setting written, read again, and read by horovodrun."""

import argparse
import importlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import needs
from scalescope.engines import ENGINES
from scalescope.errors import UsageError
from scalescope.records.job import Knob
from scalescope.records.store import save
from scalescope.records.tuning import Tuning, TuningCost
from scalescope.tuner.settings import (
    THREADS,
    as_yaml,
    environment_of,
    how_to_use,
    read_found,
    read_settings,
    shown_value,
    write_settings,
)

HOROVODRUNS_OWN = """
controller: Gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 10
  cache_capacity: 2048
  hierarchical_allreduce: true
  hierarchical_allgather: true
  torus_allreduce: false
autotune:
  enabled: true
  log_file: 'horovod_autotune_log.txt'
  warmup_samples: 5
  steps_per_sample: 20
  bayes_opt_max_samples: 50
  gaussian_process_noise: 0.9
timeline:
  filename: 'horovod_timeline.json'
  mark_cycles: true
stall_check:
  enabled: true
  warning_time_seconds: 120
library_options:
  mpi_threads_disable: true
logging:
  level: INFO
"""


def values_of(knob: Knob) -> st.SearchStrategy:
    if knob.type == "bool":
        return st.booleans()
    if knob.type == "choice":
        return st.sampled_from(knob.choices)
    if knob.type == "int":
        return st.integers(int(knob.low), int(knob.high))
    return st.floats(knob.low, knob.high)


@st.composite
def settings_of_an_engine(draw) -> tuple[str, dict]:
    engine = draw(st.sampled_from(["ddp", "horovod"]))
    knobs = draw(st.lists(st.sampled_from([*ENGINES[engine].knobs, THREADS]), unique_by=lambda knob: knob.name))
    return engine, {knob.name: draw(values_of(knob)) for knob in knobs}


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


@settings(max_examples=50)
@given(settings_of_an_engine())
def test_a_written_setting_reads_back_the_same(tmp_path_factory, setting) -> None:
    engine, values = setting
    path = written(tmp_path_factory.getbasetemp(), as_yaml(engine, values, "found by\nscalescope tune"))
    found = read_settings(path)
    assert (found.engine, found.values, found.options) == (engine, values, {})


def test_horovodruns_own_file_is_read_and_its_other_sections_are_passed_over(tmp_path: Path) -> None:
    found = read_settings(written(tmp_path, HOROVODRUNS_OWN))
    assert found.engine == "horovod"
    assert found.values == {
        "fusion_threshold_mb": 32,
        "cycle_time_ms": 10,
        "cache_capacity": 2048,
        "hierarchical_allreduce": True,
        "hierarchical_allgather": True,
        "torus_allreduce": False,
        "controller": "gloo",
    }
    assert found.options == {
        "warmup_samples": 5,
        "steps_per_sample": 20,
        "max_samples": 50,
        "autotune_noise": 0.9,
        "log_file": "horovod_autotune_log.txt",
    }


def test_horovodrun_takes_the_file_and_makes_the_same_variables_of_it() -> None:
    needs.horovod()
    config_parser = importlib.import_module("horovod.runner.common.util.config_parser")
    values = {
        "fusion_threshold_mb": 2.0,
        "cycle_time_ms": 2.5,
        "cache_capacity": 0,
        "hierarchical_allreduce": False,
        "hierarchical_allgather": True,
        "controller": "mpi",
        "threads_per_rank": 2,
    }
    document = yaml.load(as_yaml("horovod", values), Loader=yaml.FullLoader)

    class Arguments(argparse.Namespace):
        def __getattr__(self, name: str) -> None:
            return None

    arguments = Arguments()
    config_parser.set_args_from_config(arguments, document, override_args=set())
    config_parser.validate_config_args(arguments)
    theirs = config_parser.set_env_from_args({}, arguments)
    ours = environment_of("horovod", values)
    assert arguments.use_mpi
    assert theirs
    assert {name: ours[name] for name in theirs} == theirs


def test_every_form_is_written_and_says_the_setting(tmp_path: Path) -> None:
    paths = write_settings(tmp_path, "horovod", {"fusion_threshold_mb": 64.0, "controller": "mpi"}, "about")
    assert [path.name for path in paths] == ["tuned.yaml", "tuned.env", "tuned.txt"]
    assert (tmp_path / "tuned.env").read_text().splitlines() == [
        "HOROVOD_FUSION_THRESHOLD=67108864",
        "HOROVOD_CONTROLLER=mpi",
    ]
    assert "fusion_threshold_mb: 64\n" in (tmp_path / "tuned.yaml").read_text()


def test_a_form_with_nothing_to_say_is_not_left_from_before(tmp_path: Path) -> None:
    write_settings(tmp_path, "ddp", {"threads_per_rank": 2})
    assert (tmp_path / "tuned.env").read_text() == "OMP_NUM_THREADS=2\n"
    paths = write_settings(tmp_path, "ddp", {"gradient_as_bucket_view": True})
    assert [path.name for path in paths] == ["tuned.yaml", "tuned.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tuned.txt", "tuned.yaml"]


def test_the_arguments_of_ddp_can_be_pasted() -> None:
    lines = how_to_use("ddp", {"bucket_cap_mb": 1.0, "first_bucket_mb": 1.0, "gradient_as_bucket_view": True})
    assert lines == [
        "In your script:",
        "  model = DistributedDataParallel(model, bucket_cap_mb=1, gradient_as_bucket_view=True)",
    ]


@pytest.mark.parametrize(
    "values",
    [{"bucket_cap_mb": 4.0, "first_bucket_mb": 0.25}, {"first_bucket_mb": 2.0}, {"hierarchical_allreduce": True}],
)
def test_knobs_without_a_ddp_argument_are_applied_to_the_wrapped_model(values) -> None:
    assert (
        how_to_use("ddp", values, 'a "b"/tuned.yaml')[-1]
        .strip()
        .startswith(r'scalescope.apply_tuned(model, "a \"b\"/tuned.yaml")')
    )


def test_the_default_needs_no_lines() -> None:
    assert how_to_use("ddp", {}) == how_to_use("horovod", {}) == []


@pytest.mark.parametrize(("value", "shown"), [(1.0, "1"), (2.5, "2.5"), (True, "true"), (7, "7"), ("Ring", "Ring")])
def test_values_are_shown_as_people_write_them(value, shown) -> None:
    assert shown_value(value) == shown


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("params:\n  cycle_time: 5\n", "cycle_time_ms"),
        ("parms:\n  cycle_time_ms: 5\n", "params"),
        ("params:\n  bucket_cap_mb: 5\n", "no key 'bucket_cap_mb'"),
        ("ddp:\n  bucket_cap: 5\n", "bucket_cap_mb"),
        ("autotune:\n  max_samples: 5\n", "bayes_opt_max_samples"),
        ("params:\n  cycle_time_ms: -1\n", "0.01 to 1000 ms, not -1"),
        ("params:\n  cycle_time_ms: .nan\n", "not nan"),
        ("params:\n  cycle_time_ms: [1, 2]\n", "one value"),
        ("params:\n  cache_capacity: 0x" + "f" * 5000 + "\n", "Exceeds the limit (4300 digits)"),
        ("params: 5\n", "indented lines"),
        ("autotune:\n  steps_per_sample: 0\n", "from 1"),
        ("autotune:\n  gaussian_process_noise: 200\n", "0 to 100"),
        ("autotune:\n  log_file: [a]\n", "name of a file"),
        ("controller: smoke\n", "mpi or gloo"),
        ("threads_per_rank: 0\n", "from 1"),
        ("params: {}\nddp: {}\n", "keep one"),
        ("- a\n- b\n", "sections"),
        ("params:\n  cycle_time_ms: 5\n fusion_threshold_mb: [\n", "line 3"),
        ("a: 2020-99-99\n", "not readable YAML"),
        ("[" * 600, "not readable YAML"),
        ("!!python/object/apply:os.getcwd []\n", "line 1"),
        ('ddp:\n  "\\e[31mred": 1\n', "no key"),
    ],
)
def test_a_bad_file_is_an_error_of_one_printable_line(text, told, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_settings(written(tmp_path, text))
    assert told in str(caught.value)
    assert "config.yaml" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\xff\xfe\x00params", "is not readable YAML"),
        (b"#" * 20_001, "is too large for a settings file: name another one"),
        (b"\x00", "is not readable YAML"),
    ],
    ids=["no text", "too large", "zero"],
)
def test_a_binary_or_too_long_file_is_an_error(data: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=told):
        read_settings(path)


def test_a_key_without_a_value_counts_as_not_written(tmp_path: Path) -> None:
    found = read_settings(written(tmp_path, "params:\n  cycle_time_ms:\n  cache_capacity: 5.0\n"))
    assert found.values == {"cache_capacity": 5}


def test_a_setting_is_found_in_its_folder_its_file_and_its_record(tmp_path: Path) -> None:
    record = Tuning(
        what="cnn",
        engine="ddp",
        np=2,
        method="online",
        created="",
        scalescope="0",
        knobs=(),
        held={"static_graph": True},
        decision="use",
        values={"bucket_cap_mb": 2.0},
        cost=TuningCost(search_steps=0, confirm_steps=0, seconds=0, lost_s=0),
    )
    save(record, tmp_path / "tuning.json")
    expected = {"static_graph": True, "bucket_cap_mb": 2.0}
    assert read_found(tmp_path / "tuning.json").values == read_found(tmp_path).values == expected
    write_settings(tmp_path, "ddp", {"bucket_cap_mb": 3.0})
    assert read_found(tmp_path).values == {"bucket_cap_mb": 3}
    assert read_found(tmp_path / "tuned.yaml").engine == "ddp"


def test_a_place_without_a_setting_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.yaml", written(tmp_path, "autotune:\n  enabled: true\n")):
        with pytest.raises(UsageError):
            read_found(path)


def test_knobs_of_nccl_stand_in_the_usual_files_only(tmp_path: Path) -> None:
    paths = write_settings(tmp_path, "ddp", {"nccl_algo": "Ring", "bucket_cap_mb": 4.0})
    assert sorted(path.name for path in paths) == sorted(path.name for path in tmp_path.iterdir())
    assert "nccl_tuner.conf" not in {path.name for path in paths}
    assert "NCCL_ALGO=Ring" in (tmp_path / "tuned.env").read_text()
