import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scalescope
from scalescope.errors import UsageError
from scalescope.text import as_json, assignment, did_you_mean, knob_name, plain, plural, printable_json, without_escapes

PACKAGE = Path(scalescope.__file__).parent


def test_an_assignment_is_split_at_the_first_equals_sign() -> None:
    assert assignment(" A = b=c ", "--env", "A=b") == ("A", " b=c ")


@pytest.mark.parametrize("text", ["", "secret", "=secret", " =secret"])
def test_a_bad_assignment_names_the_option_and_hides_the_text(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        assignment(text, "--env", "NCCL_DEBUG=INFO")
    assert str(caught.value) == "--env takes NAME=VALUE, for example NCCL_DEBUG=INFO"


def test_knobs_may_be_written_with_dashes() -> None:
    assert [knob_name(text) for text in ("bucket-cap-mb", " bucket_cap-mb =a-b")] == ["bucket_cap_mb"] * 2


def test_escapes_go_and_tabs_stay() -> None:
    assert without_escapes("a\x1b[31mred\x1b[0m\x07\x9b2J b\tc\n\x1b]0;title\x07d") == "ared2J b\tc\nd"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("two\nlines\tand\x1b[2J all", "two lines and all"),
        ("right\u202eto left", "right?to left"),
        ("\udcff", "?"),
        ("a" * 21, "a" * 17 + "..."),
        ("a" * 20, "a" * 20),
        ("grün", "grün"),
    ],
)
def test_plain_text_has_no_markup_and_no_control_characters(text: str, clean: str) -> None:
    assert plain(text, 20) == clean


@given(st.text(st.characters(codec=None)), st.integers(4, 50))
def test_plain_text_is_printable_and_short(text: str, longest: int) -> None:
    assert plain(text, longest).isprintable()
    assert len(plain(text, longest)) <= longest


def test_nouns_follow_their_count() -> None:
    assert [plural(1, "launch"), plural(2, "launch"), plural(3_000, "step")] == [
        "1 launch",
        "2 launches",
        "3,000 steps",
    ]


def test_near_names_are_offered() -> None:
    assert did_you_mean("toruchrun", ["torchrun", "srun"]) == " (did you mean torchrun?)"
    assert did_you_mean("zebra", ["torchrun", "srun"]) == ""


# What marks a copy of something in text.py or units.py, and the one file that may hold it
ONE_TRUTH = {
    r'partition\("="\)': ["text.py"],
    r"difflib": ["text.py"],
    r"isprintable": ["text.py"],
    r"\\x1b\\\[": ["text.py"],
    r'"s", 1(\.0)?\) if': ["units.py"],
}


@pytest.mark.parametrize("mark", ONE_TRUTH)
def test_names_and_sizes_are_read_and_written_in_one_place(mark: str) -> None:
    files = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py")) if re.search(mark, path.read_text())]
    assert [str(file) for file in files] == ONE_TRUTH[mark]


def test_json_for_a_renderer_holds_only_what_is_printable() -> None:
    told = printable_json({"a": "\x1b]0;x\x07 \b\f \u202e", "b": "\\b \\u001b\n"})
    assert json.loads(told) == {"a": "?]0;x? ?? ?", "b": "\\b \\u001b\n"}


def test_json_holds_null_where_it_has_no_number() -> None:
    document = {"a": [math.inf, (1.5, -math.inf)], "b": {"c": math.nan, "d": "NaN"}, "e": 1}
    assert as_json(document) == '{"a": [null, [1.5, null]], "b": {"c": null, "d": "NaN"}, "e": 1}'
    assert as_json([0.1]) == "[0.1]"
