"""The pure parsers: --input and --model-arg."""

import subprocess
import sys

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalescope.errors import UsageError
from scalescope.records.profile import WorkloadSpec
from scalescope.workloads import InputSpec, parse_input, parse_model_args
from scalescope.workloads.inputs import FLOATS, INTEGERS, LARGEST_VOCAB, draw

sizes = st.lists(st.integers(1, 10_000), min_size=1, max_size=5).map(tuple)
float_specs = st.builds(InputSpec, shape=sizes, dtype=st.sampled_from(FLOATS))
integer_specs = st.builds(InputSpec, shape=sizes, dtype=st.sampled_from(INTEGERS), vocab=st.integers(1, LARGEST_VOCAB))
names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@given(float_specs | integer_specs)
def test_an_input_spec_reads_back_what_it_prints(spec: InputSpec) -> None:
    assert parse_input(str(spec)) == spec


@given(st.text(alphabet="0123456789x:=vocabintfloat -", max_size=24))
def test_any_text_is_an_input_or_a_usage_error_with_the_next_action(text: str) -> None:
    spec, message = outcome(text)
    if spec is None:
        assert "write" in message
        assert "\n" not in message
    else:
        assert min(spec.shape) >= 1
        assert (spec.vocab is not None) == (spec.dtype in INTEGERS)


def outcome(text: str) -> tuple[InputSpec | None, str]:
    try:
        return parse_input(text), ""
    except UsageError as error:
        return None, str(error)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("3x224x224", InputSpec((3, 224, 224))),
        ("int64:128:vocab=30000", InputSpec((128,), "int64", 30000)),
        ("bfloat16:3x32x32", InputSpec((3, 32, 32), "bfloat16")),
    ],
)
def test_inputs(text: str, spec: InputSpec) -> None:
    assert parse_input(text) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3x", r"bad --input '3x': write \[DTYPE:\]SHAPE\[:vocab=N\], for example 3x224x224"),
        ("", r"bad --input ''"),
        ("3x0", r"every size must be at least 1"),
        ("complex64:3", r"complex64 is not one of float32, "),
        ("128:vocab=10", r"vocab needs integers; write int64:128:vocab=10"),
        ("int64:128", r"int64 needs the number of values; write int64:128:vocab=30000"),
        ("int64:128:vocab=0", r"vocab must be between 1 and"),
    ],
)
def test_bad_inputs(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_input(text)


def test_drawn_samples_have_the_shape_the_kind_and_the_range_of_their_spec() -> None:
    tokens = draw(parse_input("int32:500:vocab=3"), 2, torch.Generator().manual_seed(0))
    assert (tokens.shape, tokens.dtype) == ((2, 500), torch.int32)
    assert set(tokens.flatten().tolist()) == {0, 1, 2}
    images = draw(parse_input("float16:3x64x64"), 2, torch.Generator().manual_seed(0))
    assert (images.shape, images.dtype) == ((2, 3, 64, 64), torch.float16)
    assert images.float().std().item() == pytest.approx(1, abs=0.05)


@given(st.dictionaries(names, scalars))
def test_literals_read_back_and_survive_the_way_to_the_ranks(arguments: dict[str, int | float | bool | None]) -> None:
    parsed = parse_model_args([f"{name}={value}" for name, value in arguments.items()])
    assert parsed == arguments
    assert [type(value) for value in parsed.values()] == [type(value) for value in arguments.values()]
    spec = WorkloadSpec(model="mlp", model_args=parsed)
    assert msgspec.json.decode(msgspec.json.encode(spec), type=WorkloadSpec) == spec


@given(names, st.text())
def test_quotes_keep_any_text(name: str, text: str) -> None:
    assert parse_model_args([f'{name}="{text}"']) == {name: text}


@given(names, st.text())
def test_whatever_is_written_reaches_the_ranks_as_it_was_read(name: str, text: str) -> None:
    spec = WorkloadSpec(model="mlp", model_args=parse_model_args([f"{name}={text}"]))
    assert msgspec.json.decode(msgspec.json.encode(spec), type=WorkloadSpec) == spec


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", 18),
        ("1e-3", 0.001),
        ("True", True),
        ("none", None),
        ("relu", "relu"),
        ("'18'", "18"),
        ("inf", "inf"),
        ("a=b", "a=b"),
    ],
)
def test_values(text: str, value: object) -> None:
    (parsed,) = parse_model_args([f"name={text}"]).values()
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["width"], r"--model-arg takes NAME=VALUE, for example width=512"),
        (["=3"], r"--model-arg takes NAME=VALUE"),
        (["a=1", "a=2"], r"--model-arg a is given twice: keep one"),
    ],
)
def test_bad_model_arguments(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_model_args(texts)


@pytest.mark.launches
def test_importing_the_room_and_parsing_does_not_import_torch() -> None:
    program = (
        "import sys; from scalescope.workloads import parse_input, parse_model_args, spec_from_options; "
        "parse_input('3x2'); parse_model_args(['a=1']); spec_from_options('mlp', inputs=['8']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0
