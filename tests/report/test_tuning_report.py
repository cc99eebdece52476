"""A tuning for people and programs: terminal, JSON and the sentence."""

import json

import msgspec
import pytest
from made_tunings import ALL, horovod, keep_default, many_knobs, two_hosts, unfinished, without_prior
from rendered import shown

from scalescope.records.tuning import Gain, Tuning
from scalescope.show import document_of
from scalescope.show.document import cell


def sentence(tuning: Tuning) -> str:
    return document_of(tuning).answer


def sample_rows(tuning: Tuning) -> list[list[str]]:
    """The cells of all samples."""
    (table,) = [table for section in document_of(tuning).sections for table in section.tables]
    return [[cell(column, row) for column in table.columns] for row in table.rows]


def words(text: str) -> str:
    return " ".join(text.split())


def of_gain(tuning: Tuning, value: float, low: float, high: float) -> Tuning:
    return msgspec.structs.replace(tuning, gain=Gain(value=value, low=low, high=high, pairs=6))


def test_the_sentence_names_the_winner_its_gain_and_when_the_search_pays_for_itself() -> None:
    tuning = of_gain(two_hosts(), 0.58, 0.51, 0.66)
    cost = msgspec.structs.replace(tuning.cost, break_even_steps=60)
    assert sentence(msgspec.structs.replace(tuning, cost=cost)) == (
        "Use bucket_cap_mb 1 and hierarchical allreduce: 1.58x (1.51 to 1.66) faster steps than the default "
        "(557 ms), found in 8 samples, 6 pairs of blocks and 258 steps; "
        "the search pays for itself after 60 more steps."
    )
    assert sentence(tuning).endswith("found in 8 samples, 6 pairs of blocks and 258 steps.")
    assert "6 pairs of launches" in sentence(horovod())
    assert "Use bucket_cap_mb 8, threads_per_rank 2 and nccl_algo Tree: " in sentence(many_knobs())


def test_the_sentence_says_how_sure_it_is_that_nothing_is_gained() -> None:
    none = of_gain(keep_default(), 0.008, -0.007, 0.023)
    assert sentence(none) == (
        "Keep the default: no significant gain (+0.8 % +- 1.5 %) from bucket_cap_mb 2, "
        "seen in 6 samples, 6 pairs of blocks and 227 steps."
    )
    assert "bucket_cap_mb 2 is slower (-12 % +- 2.0 %)" in sentence(of_gain(none, -0.12, -0.14, -0.10))
    assert "the gain is too small to count (+0.3 % +- 0.1 %)" in sentence(of_gain(none, 0.003, 0.002, 0.004))
    wide = of_gain(none, -0.061, -0.75, 5.6)
    assert "no significant gain (-6.1 %, too few pairs to tell how much) from bucket_cap_mb 2" in sentence(wide)
    assert "blocks: -6.1 %, too few pairs to tell how much\n" in shown(wide)
    without = msgspec.structs.replace(none, gain=None, finalist={}, reason="no setting promised more than the noise.")
    assert sentence(without) == ("Keep the default: no setting promised more than the noise (6 samples and 227 steps).")


def test_an_unfinished_search_tells_what_it_found_and_what_to_do() -> None:
    assert sentence(unfinished()) == (
        "Not decided after 4 samples and 66 steps: the training ended after 66 steps; so far bucket_cap_mb 1 and "
        "hierarchical allreduce is fastest, 1.57x by one sample and not confirmed; train longer, or ask "
        "scalescope tune for less by --steps-per-sample and --max-samples."
    )
    offline = msgspec.structs.replace(horovod(), complete=False, decision="keep_default", values={}, reason="")
    told = sentence(offline)
    assert "so far fusion_threshold_mb 16 and cycle_time_ms 0.5 leads (+32 % +- 1.1 % over 6 pairs of launches)" in told
    assert told.endswith("--resume continues where it ended.")
    alone = msgspec.structs.replace(unfinished(), samples=unfinished().samples[:1])
    assert "nothing was faster than the default so far" in sentence(alone)
    assert "nothing was faster than the default so far" in sentence(msgspec.structs.replace(alone, samples=()))


def test_a_setting_that_was_given_is_not_called_found() -> None:
    given = msgspec.structs.replace(two_hosts(), samples=(), cells=(), gain=None)
    assert sentence(given) == "Use bucket_cap_mb 1 and hierarchical allreduce, as it was given: nothing was searched."
    assert "What the search cost" not in shown(given)


def test_the_document_holds_what_scripts_rely_on() -> None:
    tuning = two_hosts()
    document = json.loads(json.dumps(document_of(tuning).json(), allow_nan=False))
    assert document["decision"] == "use"
    assert document["knobs"] == {"first_bucket_mb": 1.0, "bucket_cap_mb": 1.0, "hierarchical_allreduce": True}
    assert set(document["gain"]) >= {"value", "low", "high"}
    assert document["gain"]["value"] == pytest.approx(0.58, abs=0.02)
    assert (document["samples"], document["pairs"], document["steps"]) == (8, 6, 258)
    assert document["cost"]["search_steps"] + document["cost"]["confirm_steps"] + 20 == 258
    assert (document["default_step_s"], document["winner_step_s"]) == pytest.approx((0.557, 0.353), abs=0.001)
    assert [trial["phase"] for trial in document["trials"]].count("confirm") == 12
    assert document["trials"][1]["speedup"] == pytest.approx(1.57, abs=0.01)
    assert document["left_out"]["nccl_algo"] == "the backend is gloo"
    kept = document_of(keep_default()).json()
    assert (kept["decision"], kept["knobs"], kept["found"]) == ("keep_default", {}, {})
    assert kept["finalist"] == {"bucket_cap_mb": 2.0}


def test_the_table_has_a_row_per_sample_of_the_search() -> None:
    default, winner, *others = rows = sample_rows(two_hosts())
    assert [float(row[3].split()[0]) for row in others] == sorted(float(row[3].split()[0]) for row in others)
    assert default == ["the default", "0", "557 ms", "556 ± 4.6 ms", "", "what others are compared with"]
    assert winner == [
        "bucket_cap_mb 1 and hierarchical allreduce",
        "1",
        "378 ms",
        "354 ± 2.9 ms",
        "1.57x",
        "winner, best so far",
    ]
    assert len(rows) == 8
    assert "predicted" in shown(two_hosts(), width=100)
    assert "predicted" not in shown(two_hosts(), width=60).partition("What was searched")[0]


def test_of_many_samples_the_default_and_the_fastest_are_shown() -> None:
    rows = sample_rows(many_knobs())
    assert [row[0].partition(",")[0] for row in rows[:2]] == ["the default", "bucket_cap_mb 8"]
    told = shown(many_knobs())
    assert "... 9 samples more" in told
    assert "the default and then the fastest" in told


def test_cut_and_failed_samples_say_so() -> None:
    (cut,) = [row for row in sample_rows(keep_default()) if row[0] == "bucket_cap_mb 0.5"]
    assert cut[-2:] == ["0.48x", "cut: clearly worse"]
    (failed,) = [row for row in sample_rows(without_prior()) if row[1] == "4"]
    assert failed == ["bucket_cap_mb 2", "4", "", "failed", "", "rank 1 ended with code 1"]


def test_the_terminal_tells_what_was_fixed_left_out_compared_and_spent() -> None:
    told = words(shown(two_hosts()))
    assert "train.py: ddp on 4 processes of 2 hosts, while training" in told
    assert "searched: bucket_cap_mb: 0.25, 0.5, 1, 2, 4, 8, as it is, 50 MiB (default: 25)" in told
    assert "fixed: first_bucket_mb 1" in told
    assert "left out: static_graph: needs a relaunch: ask with --offline" in told
    assert "6 pairs of blocks: 1.58x (1.57 to 1.60), with 95 % confidence over" in told
    assert "94 steps of search, 144 of confirmation, 20 of warm-up before; 1 min 44 s" in told
    assert "the search gained 27.7 s against the default" in told
    kept = words(shown(keep_default()))
    assert "6 pairs of blocks: -0.5 % +- 1.3 %, with 95 % confidence over all looks" in kept
    assert "the search lost 131 ms against the default" in kept
    early = words(shown(unfinished()))
    assert "ended: the training ended after 66 steps" in early
    assert "against the default," not in early


@pytest.mark.parametrize("width", [60, 120])
def test_nothing_is_wider_than_the_terminal_and_nothing_paints_it(width: int) -> None:
    for made in ALL.values():
        lines = shown(made(), width).splitlines()
        assert max(map(len, lines)) <= width
    text = shown(many_knobs(), width)
    assert "\x1b" not in text
    assert "[bold]</script>" in text
    assert "\x1b" not in sentence(many_knobs())


def test_a_space_of_which_only_the_default_was_tried_is_not_called_searched() -> None:
    known = keep_default()
    default = tuple(each for each in known.samples if each.phase == "default")
    tried = document_of(msgspec.structs.replace(known, samples=default, finalist={}, gain=None))
    (space,) = [each for each in tried.sections if each.name == "tuning-space"]
    assert space.facts[0] == "nothing but the default was tried: the predicted gain is below the noise"
    assert not [line for line in space.facts if line.startswith("searched:")]
    assert [line for line in space.facts if line.startswith("not tried:")]
