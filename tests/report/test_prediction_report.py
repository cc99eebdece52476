import csv
import io
import json
import re
from pathlib import Path

import msgspec
import pytest
from made_predictions import both, checked, crowded, hopeless, large, predicted, single, too_large
from made_scalings import NASTY
from rendered import as_csv, as_latex, as_markdown
from rendered import shown as rendered

from scalescope.errors import WorkFailed
from scalescope.records.prediction import STATED, Cell, Prediction
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import EstimateRequest
from scalescope.records.scaling import Curve, Estimate, Scaling, ScalingPoint
from scalescope.show import document_of, files, terminal
from scalescope.verbs.estimate import after_estimate


def shown(prediction: Prediction, width: int = 100) -> str:
    return rendered(prediction, width)


def sentence(prediction: Prediction) -> str:
    return document_of(prediction).answer


def facts(prediction: Prediction) -> list[str]:
    return list(document_of(prediction).sections[0].facts)


def map_rows(text: str) -> dict[str, list[str]]:
    """Cells as they are written, by processes and without nodes, of the first map."""
    heading, _, *lines = text[re.search(r"^ *processes", text, re.MULTILINE).start() :].split("\n\n")[0].splitlines()
    found = [line.split() for line in lines if re.match(r" {3,9}\d", line)]
    return {first: rest["nodes" in heading :] for first, *rest in found}


def test_the_map_shows_every_cell_and_tells_kinds_apart_without_colour() -> None:
    text = shown(both())
    strong = map_rows(text)
    assert list(strong) == ["1", "2", "3", "4", "6", "8"]
    assert strong["1"] == ["1.00"] * 7 + ["~1.00"]
    assert strong["8"] == ["-", "(0.25)", "(0.40)", "(0.69)", "1.23", "2.18", "3.67", "5.69"]
    weak = map_rows(text.split("weak scaling", 1)[1])
    assert weak["2"] == ["1.29", "1.62", "1.85", "1.88", "1.90", "1.91", "1.92", "~1.92"]
    assert weak["8"][-1] == "[7.09]"
    assert "( ) slower than one process" in text
    assert "[ ] recommended" in text
    assert "~ beyond the profiled batches" in text
    assert re.search("- fewer samples than\\s+processes", text)
    assert "\x1b" not in text


def test_what_reads_one_is_not_called_slower() -> None:
    (cell,) = single().cells
    close = msgspec.structs.replace(single(), cells=(msgspec.structs.replace(cell, speedup=0.996),), recommended=None)
    far = msgspec.structs.replace(single(), cells=(msgspec.structs.replace(cell, speedup=0.994),), recommended=None)
    assert map_rows(shown(close)) == {"2": ["1.00"]}
    assert map_rows(shown(far)) == {"2": ["(0.99)"]}


def test_rows_name_their_nodes_where_there_are_several() -> None:
    _, _, *lines = shown(predicted()).split("processes nodes", 1)[1].splitlines()[:8]
    assert [line.split()[:2] for line in lines] == [
        ["1", "1"],
        ["2", "1"],
        ["3", "1"],
        ["4", "1"],
        ["6", "2"],
        ["8", "2"],
    ]
    assert "processes nodes" not in shown(predicted(slots=8))


def test_ascii_terminals_get_ascii() -> None:
    raw = io.BytesIO()
    text = io.TextIOWrapper(raw, encoding="ascii")
    terminal.show(document_of(checked()), terminal.open_console(file=text, width=100), details=True)
    text.flush()
    assert b"[7.09]" in raw.getvalue()


def test_colours_are_dark_below_one_and_bright_at_the_top() -> None:
    def coloured(prediction: Prediction) -> str:
        text = io.StringIO()
        console = terminal.open_console(file=text, width=100, force_terminal=True, color_system="truecolor")
        terminal.show(document_of(prediction), console, details=True)
        return text.getvalue()

    text = coloured(both())
    assert re.search(r"48;2;28;28;28m\(0\.25\)", text)
    assert re.search(r"48;2;253;231;37m\[7\.09\]", text)
    assert re.search(r"48;2;53;95;141m1\.00", text)
    assert re.search(r"48;2;221;221;221mmem", coloured(crowded()))


def test_what_does_not_fit_is_said_and_the_rest_is_recommended() -> None:
    text = shown(crowded())
    assert map_rows(text)["8"][-3:] == ["[6.94]", "mem", "mem"]
    assert "mem: does not fit into memory" in text
    assert "largest batch of a process that fits into 3 GiB: 128" in text
    nothing = shown(too_large())
    assert map_rows(nothing)["1"] == ["mem", "mem"]
    assert "recommended: nothing fits into memory" in nothing


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_large_maps_are_thinned_and_say_so(width: int) -> None:
    lines = shown(large(), width).splitlines()
    assert max(map(len, lines)) <= width
    rows = map_rows("\n".join(lines))
    columns = len(rows["1"])
    assert len(rows) == 30
    assert columns == 12 or f"... {12 - columns} columns more on a wider terminal" in lines
    assert {"1", "2", "4", "8", "16", "32", "61", "64"} <= set(rows)  # 61 is recommended
    assert "shown: 30 of 64 numbers of processes and 12 of 1,024 batches" in " ".join(" ".join(lines).split())
    assert rows["61"][-1].startswith("[")


@pytest.mark.parametrize(
    ("regret", "words"),
    [
        (0.0, "the highest throughput of the map"),
        (0.004, "within 0.5 % of the highest throughput of the map"),
        (0.2, "20 % less throughput than the fastest cell"),
    ],
)
def test_what_is_given_up_is_throughput_whatever_the_speedups_of_other_cells(regret: float, words: str) -> None:
    made = predicted()
    assert made.recommended
    advised = msgspec.structs.replace(made, recommended=msgspec.structs.replace(made.recommended, regret=regret))
    assert sentence(advised).endswith(f"samples/s; {words}.")
    assert "no cell is faster" not in shown(advised, 300)


def test_efficiency_is_not_spoken_of_where_nothing_fits() -> None:
    assert "no batch of the map fits into" in sentence(too_large())
    assert "reaches an efficiency" not in shown(too_large())


def test_why_no_number_of_processes_is_efficient_is_said() -> None:
    assert "no more than 1 process reaches an efficiency of 80 %" in facts(hopeless())
    several = predicted("mlp", network_s=4.0, counts=(2, 4))
    assert "no number of processes of the map reaches an efficiency of 80 %" in facts(several)
    made = predicted(counts=(1, 2, 4))
    alone = tuple(msgspec.structs.replace(cell, fits=cell.np == 1) for cell in made.cells)
    made = msgspec.structs.replace(made, cells=alone, most_efficient_np=1)
    assert "more than 1 process does not fit into memory" in facts(made)


def test_a_correction_that_reads_as_1_is_none() -> None:
    wrong = checked()
    corrected = msgspec.structs.replace(wrong, correction=0.932)
    assert "; the map is corrected (0.93x the predicted step). cnn with ddp" in sentence(corrected)
    for factor in (1.0, 0.9951, 1.0049):
        words = sentence(msgspec.structs.replace(wrong, correction=factor))
        assert "; the intervals are wider now. cnn with ddp" in words
        assert "corrected" not in words
    assert wrong.calibration
    for factor, said in ((0.9996, "on average; a spread of 3.1 % is left"), (1.002, "multiplied by 1.002 for that, a")):
        known = msgspec.structs.replace(wrong.calibration, factor=factor)
        assert said in "\n".join(facts(msgspec.structs.replace(wrong, calibration=known)))


def test_the_lines_below_tell_advice_trust_and_checks() -> None:
    text = " ".join(shown(checked(), 300).split())
    assert (
        "- recommended: 8 processes with batch 512 each give 7.09x (6.69 to 7.54), efficiency 89 %, 8,776 samples/s; "
        "the highest throughput of the map; the fastest cell that keeps 80 % efficiency" in text
    )
    assert "largest efficient number of processes: 8, with an efficiency of 80 % or more" in text
    assert (
        "- 12 estimates checked here so far: wrong by 5.8 % on average; steps are multiplied by 1.042 for that, "
        "a spread of 3.1 % is left" in text
    )
    assert "- 4 cells run for real: wrong by 4.5 % on average, 12.0 % at worst; 3 of 4 inside" in text
    assert "weak 8 256 237 ms (223-252) 212 ms (208-218) +12.0 no" in text
    assert "strong 4 16 20.6 ms (19.6-21.7) 20.4 ms (20.0-21.0) +1.0 yes" in text
    assert text.endswith("Warnings - other programs took [red]0.8[/red] cores while the profile was taken")
    fresh = shown(both())
    assert "nothing was verified here yet: --verify 3" in fresh
    assert "Run for real" not in fresh
    assert "Warnings" not in fresh


def test_checks_fit_a_terminal() -> None:
    lines = shown(checked(), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(re.match(r"weak +2 +16 .* \+3\.0 +yes$", line) for line in lines)


def test_the_sentence_answers() -> None:
    assert sentence(predicted(goal=0.9)) == (
        "cnn with ddp: 4 processes with batch 512 each give 3.70x (3.52 to 3.89), efficiency 92 %, "
        "4,575 samples/s; 48 % less throughput than the fastest cell."
    )
    assert sentence(hopeless()) == (
        "mlp with ddp: stay with 1 process with batch 512; up to 8 processes no speedup above 1 is expected."
    )
    assert sentence(predicted(network_s=1.6, counts=(1, 4))) == (
        "cnn with ddp: stay with 1 process with batch 512; up to 4 processes at most 1.49x is expected, "
        "below the efficiency of 80 % that was asked for."
    )
    assert sentence(too_large()) == (
        "gpt with ddp: no batch of the map fits into 256 MiB of memory; ask for smaller ones."
    )
    assert "global batch 512, at most 171 each" in sentence(predicted(kinds=("strong",), counts=(1, 3), goal=0.9))
    assert "\n" not in sentence(predicted("python\ntrain.py " + "x" * 100))


def test_users_texts_are_no_markup() -> None:
    prediction = msgspec.structs.replace(checked(), what="[red]x[/red] [/]", engine="[bold]")
    assert "[red]x[/red] [/] with [bold]" in shown(prediction)


def test_the_document_holds_every_cell_with_every_field() -> None:
    prediction = checked()
    document = json.loads(json.dumps(document_of(prediction).json()))
    assert len(document["cells"]) == len(prediction.cells) == 94
    assert set(document["cells"][0]) == {field.name for field in msgspec.structs.fields(Cell)}
    (cell,) = [
        each for each in document["cells"] if (each["scaling"], each["np"], each["global_batch"]) == ("strong", 6, 64)
    ]
    assert cell["batch"] == 11
    assert cell["low_s"] < cell["step_s"] < cell["high_s"]
    assert document["recommended"]["np"] == 8
    assert document["recommended"]["batch"] == 512
    assert document["recommended"]["regret"] == 0
    assert document["knobs"] == {"bucket_cap_mb": 25}
    assert document["calibration"]["factor"] == 1.042
    assert [round(check["error"], 6) for check in document["checks"]] == [0.03, -0.02, 0.12, 0.01]
    assert document["kind"] == "prediction"
    assert document["most_efficient_np"] == 8
    assert document["warnings"] == list(prediction.warnings)
    assert document_of(too_large()).json()["recommended"] is None


def test_csv_has_all_cells_with_units_in_the_names() -> None:
    prediction = crowded()
    rows = list(csv.DictReader(io.StringIO(as_csv(prediction))))
    assert len(rows) == 48
    assert {"np", "step_s", "speedup_low", "samples_per_s", "memory_bytes"} <= set(rows[0])
    assert "device_hours_per_million_samples" in rows[0]
    assert not {"throughput", "device_hours"} & set(rows[0])
    last = rows[-1]
    assert (last["np"], last["batch"], last["global_batch"], last["fits"]) == ("8", "512", "4096", "0")
    assert float(last["speedup"]) == pytest.approx(prediction.cells[-1].speedup)
    assert (last["engine"], last["what"]) == ("ddp", "resnet50")
    assert "'=1+1" in as_csv(predicted("=1+1"))


def test_markdown_and_latex_are_the_map_with_its_advice() -> None:
    text = as_markdown(checked())
    table = [line for line in text.split("weak scaling")[1].splitlines() if line.startswith("|")]
    assert table[0] == "| processes | nodes | 4 | 8 | 16 | 32 | 64 | 128 | 256 | 512 |"
    assert table[7].startswith("| 8 | 2 | 1.34 |")
    assert table[7].endswith(r"| \[7.09\] |")
    strong = [line for line in text.split("weak scaling")[0].splitlines() if line.startswith("| 8 ")]
    assert strong[0].startswith("| 8 | 2 | - | (0.25) | (0.40) |")
    assert r"\[ \] recommended; \~ beyond the profiled batches" in text
    assert "8 processes with batch 512 each give 7.09x" in text
    assert "| mem | mem |" in as_markdown(crowded())
    assert "shown: 30 of 64 numbers of processes and 12 of 1,024 batches" in as_markdown(large())
    assert "<img" not in as_markdown(predicted(NASTY))
    assert re.search(r"8 & 2 & 1\.34 & .* & \[7\.09\] ", as_latex(checked()))


def test_tables_are_written_into_a_new_folder(tmp_path: Path) -> None:
    written = files.write_tables(document_of(both()), tmp_path / "new")
    assert [path.name for path in written] == ["estimate.csv", "estimate.md", "estimate.tex"]
    assert all(path.stat().st_size > 1000 for path in written)
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkFailed, match="choose another folder"):
        files.write_tables(document_of(both()), tmp_path / "file")


def test_step_times_that_were_given_are_not_verified_here() -> None:
    stated = msgspec.structs.replace(predicted(), warnings=(f"{STATED}; what a step consists of: profile.json",))
    assert "--verify" not in shown(stated)
    assert "run scalescope measure where the step times were taken" in " ".join(shown(stated).split())


def test_measured_cells_count_as_checks() -> None:
    (cell,) = [each for each in both().cells if (each.scaling, each.np, each.batch) == ("weak", 4, 64)]
    step = Estimate(value=1.1 * cell.step_s, low=cell.step_s, high=1.2 * cell.step_s, count=5, interval="t")
    point = ScalingPoint(np=4, engine="ddp", batch=64, launches=5, step_s=step)
    curve = Curve(scaling="weak", engine="ddp", batch=64, points=(point,), baseline_np=None, baseline_engine="ddp")
    measured = Scaling(what="cnn", source="measurement", curves=(curve,))
    text = " ".join(rendered(both(), 300, measured=measured).split())
    assert "1 cell run for real: wrong by 9.1 %" in text
    assert "weak 4 64 60.6 ms (57.6-63.6) 66.7 ms (60.6-72.7) -9.1 no" in text
    assert document_of(both(), measured=measured).json()["checks"] == []


def test_step_times_that_were_given_lead_to_a_measurement(tmp_path: Path) -> None:
    request = EstimateRequest(workload=WorkloadSpec(model="mlp"), step_time={512: 0.097}, batch=(512,))
    assert after_estimate(request, predicted(), tmp_path).startswith("scalescope measure mlp --np 1,8 --batch 512")
    verified = after_estimate(msgspec.structs.replace(request, step_time={}), predicted(), tmp_path)
    assert verified.endswith("--verify 2")
