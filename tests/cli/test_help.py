"""The help texts, and how words are split."""

import re

import pytest

from scalescope import __version__
from scalescope.cli import run, split_at_dashes
from scalescope.options import GROUPS, options_of
from scalescope.verbs import VERBS


def test_help_lists_every_verb_with_a_sentence(capsys) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for verb in VERBS:
        assert re.search(rf"\b{verb.name}\b +\w+", shown)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_option_of_a_verb_is_explained(verb, capsys) -> None:
    rare = any(option.opt.rare for option in options_of(verb.request)) or "verbose" in verb.takes
    assert run([verb.name, "--help-all" if rare else "--help"]) == 0
    shown = re.sub(r"[│\s]+", " ", capsys.readouterr().out)
    for option in options_of(verb.request):
        shown_elsewhere = verb.name == "explain" and option.keyword == "model"  # in the help of its files
        if not option.opt.hidden and not option.opt.after_dashes and not shown_elsewhere:
            assert option.opt.help.split()[0] in shown, option.keyword


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_help_shows_at_most_32_options_in_the_usual_order(verb, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run([verb.name, "--help"]) == 0
    shown = capsys.readouterr().out
    groups = [group or "Options" for group in GROUPS]
    panels = [name for name in re.findall(r"^╭─ (\w+)", shown, re.MULTILINE) if name != "Arguments"]
    assert panels == sorted(panels, key=groups.index)
    assert len(re.findall(r"^│ (?:\* +)?--[a-z]", shown, re.MULTILINE)) <= 32
    assert not re.search(r"…|<\w+>| $", shown, re.MULTILINE)


def test_rare_options_are_in_help_all_and_those_of_horovodrun_in_neither(capsys) -> None:
    for flag in ("--help", "--help-all"):
        assert run(["tune", flag]) == 0
        shown = capsys.readouterr().out
        assert ("--gp-noise" in shown) == (flag == "--help-all")
        assert "--autotune-" not in shown


def test_the_version_is_shown(capsys) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"scalescope {__version__}\n"


def test_the_command_begins_after_the_first_double_dash() -> None:
    assert split_at_dashes(["measure", "--np", "2"]) == (["measure", "--np", "2"], ())
    words = ["measure", "--", "srun", "--", "x", "--help"]
    assert split_at_dashes(words) == (["measure"], ("srun", "--", "x", "--help"))


def test_no_words_show_the_help(capsys) -> None:
    code = run([])
    captured = capsys.readouterr()
    assert code in (0, 2)
    assert "measure" in captured.out + captured.err


def test_a_bare_scalescope_prints_its_help_and_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    shown = capsys.readouterr()
    assert "COMMAND" in shown.out + shown.err
    assert "scalescope:" not in shown.err
