import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_explanation import ESCAPES, bare_horovod, compared, ddp, nasty, without_steps

from scalescope.records.explanation import Change, Epoch, Explanation, Finding, Loss
from scalescope.records.store import decode, encode
from scalescope.show import document_of, files, terminal

EVERY = {
    "two ranks": ddp(),
    "one rank": ddp(1, straggler=None),
    "sixteen ranks": ddp(16, straggler=12),
    "many steps": ddp(4, 3000),
    "bare timeline": bare_horovod(),
    "with a prediction": compared(),
    "malicious": nasty(),
    "without steps": without_steps(),
}
every = pytest.mark.parametrize("explanation", EVERY.values(), ids=EVERY)


def shown(explanation: Explanation, width: int = 80, *, colours: bool = False) -> str:
    text = io.StringIO()
    system = "truecolor" if colours else None
    console = terminal.open_console(file=text, width=width, force_terminal=colours, color_system=system)
    terminal.show(document_of(explanation), console, details=True)
    return text.getvalue()


def sentence(explanation: Explanation) -> str:
    return document_of(explanation).answer


def as_document(explanation: Explanation) -> dict[str, Any]:
    return document_of(explanation).json()


def as_csv(explanation: Explanation) -> str:
    return files.as_csv(document_of(explanation).files["explanation"])


def as_markdown(explanation: Explanation) -> str:
    return files.as_markdown(document_of(explanation))


def joined(text: str) -> str:
    """Without the breaks of lines."""
    return " ".join(text.split())


@every
def test_an_explanation_survives_the_disk(explanation: Explanation) -> None:
    assert decode(encode(explanation), Explanation, "x") == explanation


@every
def test_present_parts_add_up_to_the_step(explanation: Explanation) -> None:
    document = json.loads(json.dumps(as_document(explanation), allow_nan=False))
    accountings = [document["accounting"], *(rank["accounting"] for rank in document["per_rank"])]
    for accounting in accountings:
        assert sum(accounting.values()) == pytest.approx(1 if accounting else 0, abs=1e-9)
        assert None not in accounting.values()


def test_the_document_holds_what_scripts_rely_on() -> None:
    document = as_document(ddp())
    assert (document["kind"], document["ranks"], document["steps"]) == ("profiler traces", 2, 60)
    assert list(document["accounting"]) == ["compute", "exposed_communication", "input", "optimizer", "other"]
    assert document["hidden_communication"] == pytest.approx(0.352, abs=1e-3)
    assert document["lost"] == {"events": 0, "bytes": 0, "reason": "", "files": ()}
    assert [finding["id"] for finding in document["findings"]] == ["straggler", "one bucket too large"]
    assert {"id", "sentence", "evidence", "change", "gain"} <= set(document["findings"][0])
    assert document["per_rank"][1]["late_s"] == 0.02
    assert document["straggler"] == 1


def test_what_a_bare_timeline_cannot_tell_is_absent() -> None:
    document = as_document(bare_horovod())
    assert set(document["accounting"]) == {"exposed_communication", "other"}
    assert "hidden_communication" not in document
    assert document["possibly_hidden_communication"] == pytest.approx(0.006 / 0.054, rel=1e-2)
    assert "waiting_s" not in document["horovod"]
    assert "wait_s" not in document["transfers"][0]
    assert "probed_s" not in document["transfers"][0]
    assert as_document(bare_horovod(ticks=True))["horovod"]["last_rank"] == {"1": 58, "0": 2}
    assert as_document(without_steps())["accounting"] == {}


def test_findings_come_by_gain_and_unknown_gains_last() -> None:
    def finding(name: str, gain: float | None) -> Finding:
        return Finding(id=name, sentence=f"{name}.", evidence={}, change="x", gain=gain)

    mixed = tuple(finding(*each) for each in (("b", 0.1), ("unknown", None), ("a", 0.5)))
    explanation = msgspec.structs.replace(ddp(), findings=mixed)
    assert [each["id"] for each in as_document(explanation)["findings"]] == ["a", "b", "unknown"]
    text = shown(explanation)
    assert text.index("1. a.") < text.index("2. b.") < text.index("3. unknown.")
    assert text.count("gain: ") == 2, "what has no gain is told without one"


def test_the_sentence_tells_parts_and_the_largest_gain() -> None:
    assert sentence(ddp()) == (
        "Rank 1 comes 19.8 ms later to the allreduces than the others, in 57 of 57 steps; "
        "fix saves 21.6 ms per step (1.2x). "
        "A traced 113 ms step is 63 % compute, 18 % exposed communication "
        "(9 % waiting for rank 1, 10 % transfer), 2 % waiting for input, "
        "4 % optimizer and 12 % other (communication hidden under compute: 35 %)."
    )
    many = sentence(ddp(4))
    assert "waiting for rank 1, 10 % transfer)" in many
    assert "waiting for other ranks" in sentence(ddp(2, straggler=None)), "nobody is named"
    assert sentence(bare_horovod()) == (
        "A traced 50 ms step (54 ms in the mean) is "
        "18 % exposed communication (4 % waiting for other ranks, 14 % transfer) "
        "and 82 % unknown (a horovod timeline alone does not tell it) "
        "(communication that may be hidden: 11 %). Nothing stands out."
    )
    assert "has no steps" in sentence(without_steps())


def test_the_terminal_shows_every_part_of_every_rank() -> None:
    text = shown(ddp())
    (line,) = [line for line in text.splitlines() if line.startswith("1 ")]
    assert line.split()[:11] == ["1", "112", "ms", "63.3", "0.0", "8.6", "2.4", "3.8", "21.9", "35.2", "20"]
    bar = line.split()[-1]
    assert re.fullmatch("c+t*i*o*[.]+", bar)
    assert abs(bar.count("c") / len(bar) - 0.633) < 0.1
    assert "rank 1 is the straggler: it comes 20 ms later" in joined(text)
    assert "from step 30 on a step takes 107 ms instead of 94 ms" in text
    assert "gain: fix saves 21.6 ms per step (1.2x)" in text


def test_without_details_the_mean_step_is_a_bar_with_its_key() -> None:
    text = io.StringIO()
    terminal.show(document_of(ddp()), terminal.open_console(file=text, width=100))
    lines = text.getvalue().splitlines()
    assert any(re.fullmatch("c{25}w{4}t{4}io[.]{5}", line) for line in lines)
    assert "- parts: c compute, w waiting for other ranks, t exposed transfer, i input, o optimizer, . other" in lines
    assert not [line for line in lines if line.startswith("- Rank 1 comes")], "the answer has it"


def test_the_bar_has_the_colours_of_the_charts() -> None:
    text = shown(ddp(), colours=True)
    assert re.search(r"48;2;59;135;192mc+\x1b", text)
    assert re.search(r"48;2;213;94;0mt+\x1b", text)


def test_horovods_part_is_told() -> None:
    text = joined(shown(bare_horovod()))
    assert "negotiation 6.1 ms, negotiation in the first step 900 ms (cached: the rank waited for is unknown)" in text
    assert "collectives: GLOO_ALLREDUCE 7.3 ms, GLOO_BCAST 200 us" in text
    assert "3 messages of 5.3 tensors and 12 MiB each; 51 cycles, 47.5 of them without work" in text
    assert "layer.15.weight" in text
    assert "... 8 tensors more" in text
    assert "rank unknown: cached negotiation" in text
    assert "not told by this source, and in other: compute, input, optimizer" in text
    assert "compute waiting" not in text
    ticks = joined(shown(bare_horovod(ticks=True)))
    assert "until the last rank was ready 5.2 ms, protocol 900 us" in ticks
    assert "last to be ready in 60 negotiations: rank 1 58 times, rank 0 2 times" in ticks


def test_loss_and_silence_are_said() -> None:
    assert "not read: 3 events and 1.21 KiB: the file ends within an event" in shown(bare_horovod())
    assert "not read" not in shown(ddp())
    reason = msgspec.structs.replace(ddp(), lost=Loss(reason="still growing"))
    assert "not read: still growing" in shown(reason)
    assert "Nothing stands out: nothing that is known to cost time was found." in shown(bare_horovod())
    assert "Nothing stands out: there are no steps." in shown(without_steps())


def test_long_tables_are_cut_with_a_count() -> None:
    text = shown(ddp(80, 5, straggler=77))
    assert "... 16 ranks more" in text
    assert re.search("^77 ", text, re.MULTILINE), "the straggler is shown in any case"
    assert "\n16 ranks more" in as_markdown(ddp(80, 5, straggler=77))
    changes = tuple(Change(step=step, before_s=1, after_s=2) for step in range(9))
    epochs = tuple(Epoch(number=number, steps=5, seconds=1.0) for number in range(1, 31))
    long = shown(msgspec.structs.replace(ddp(), changes=changes, epochs=epochs))
    assert "5 more changes" in long
    assert "... 22 epochs more" in long


@pytest.mark.parametrize("width", [60, 80, 120])
@every
def test_nothing_is_wider_than_the_terminal_or_longer_than_a_screen(explanation: Explanation, width: int) -> None:
    lines = shown(explanation, width).splitlines()
    assert max(len(line) for line in lines if not line.startswith("Do: ")) <= width  # what to paste stays whole
    assert width < 80 or len(lines) <= 70


def test_terminals_obey_nothing_that_a_trace_says() -> None:
    for text in (shown(nasty()), sentence(nasty()), as_markdown(nasty()), as_csv(nasty())):
        assert not [character for character in text if not character.isprintable() and character != "\n"]
    assert "[bold]loud[/bold]" in shown(nasty())
    assert "<script>" not in as_markdown(nasty())
    assert "\x1b" not in json.dumps(as_document(nasty()))
    assert as_document(nasty())["what"] == ESCAPES


def test_ascii_terminals_get_ascii() -> None:
    raw = io.BytesIO()
    text = io.TextIOWrapper(raw, encoding="ascii")
    explanation = msgspec.structs.replace(bare_horovod(name="Schicht ä"), what="Modell ö")
    terminal.show(document_of(explanation), terminal.open_console(file=text, width=80), details=True)
    text.flush()
    assert b"horovod timeline: Modell ?" in raw.getvalue()


def test_csv_has_a_row_per_step_and_rank() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(ddp(3)))))
    assert len(rows) == 180
    assert [row["warmup"] for row in rows[:12]] == ["1"] * 9 + ["0"] * 3
    last = rows[-1]
    assert (last["rank"], last["step"]) == ("2", "59")
    parts = ("compute_s", "exposed_s", "input_s", "optimizer_s", "other_s")
    assert sum(float(last[part]) for part in parts) == pytest.approx(float(last["step_s"]))
    bare = next(csv.DictReader(io.StringIO(as_csv(bare_horovod()))))
    assert (bare["compute_s"], bare["hidden_s"]) == ("", "")
    formula = msgspec.structs.replace(ddp(), what="=1+1")
    assert next(csv.DictReader(io.StringIO(as_csv(formula))))["what"] == "'=1+1"


def test_markdown_has_the_accounting_of_every_rank() -> None:
    text = as_markdown(ddp())
    assert "| all | 112 ms | 63.3 | 8.6 | 9.5 | 2.4 | 3.8 | 12.4 | 35.2 | - |" in text
    assert "| 1 | 112 ms | 63.3 | 0.0 | 8.6 | 2.4 | 3.8 | 21.9 | 35.2 | 20 ms |" in text
    assert text.count("The last bucket of 9 MiB is sent") == 1
    assert "has ended. (fix saves 4.46 ms per step (1.04x))" in text
    assert "bucket\\_cap\\_mb=4" in text
    assert "| rank | step | waiting for other ranks (%) | exposed transfer (%) | other (%) |" in as_markdown(
        bare_horovod()
    )


def test_tables_are_written(tmp_path: Path) -> None:
    written = files.write_tables(document_of(ddp()), tmp_path / "new")
    assert [path.name for path in written] == ["explanation.csv", "explanation.md", "explanation.tex"]
    assert all(path.stat().st_size for path in written)


def test_exposed_communication_is_divided_where_the_source_tells() -> None:
    document = as_document(ddp())
    assert sum(document["exposed"].values()) == pytest.approx(document["accounting"]["exposed_communication"])
    assert [set(rank["exposed"]) for rank in document["per_rank"]] == [{"waiting", "transfer"}] * 2
    alone = as_document(ddp(1, straggler=None))
    assert "exposed" not in alone, "one rank cannot tell"
    assert "waiting for other ranks" not in sentence(ddp(1, straggler=None))


def test_a_guess_is_called_one() -> None:
    (first, *_) = ddp().findings
    guess = msgspec.structs.replace(ddp(), findings=(msgspec.structs.replace(first, gain_from="guess"),))
    assert sentence(guess).count("fix saves 21.6 ms per step (1.2x, a guess).") == 1
    assert "from a guess" in shown(guess)
