"""The help texts, and how words are split."""

import inspect
import re

import pytest

from scalescope.cli import VERBS, run, split_at_dashes


def test_help_lists_every_verb_with_a_sentence(capsys) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for verb in VERBS:
        assert re.search(rf"\b{verb.__name__}\b +\w+", shown)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_every_option_of_a_verb_is_explained(verb, capsys) -> None:
    assert run([verb.__name__, "--help"]) == 0
    shown = re.sub(r"[│\s]+", " ", capsys.readouterr().out)
    for name, parameter in inspect.signature(verb).parameters.items():
        if name not in ("context", "join"):  # the one is no option, the other is hidden
            (info,) = parameter.annotation.__metadata__
            assert info.help.split()[0] in shown, name


def test_only_the_first_dashes_part_the_command() -> None:
    assert split_at_dashes(["measure", "--np", "2"]) == (["measure", "--np", "2"], ())
    words = ["measure", "--", "srun", "--", "x", "--help"]
    assert split_at_dashes(words) == (["measure"], ("srun", "--", "x", "--help"))


def test_no_words_show_the_help(capsys) -> None:
    code = run([])
    captured = capsys.readouterr()
    assert code in (0, 2)
    assert "measure" in captured.out + captured.err
