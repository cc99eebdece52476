"""Words, table and pictures of a script's map: a row for each number of processes, and what does not fit."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from tests.simulator.made import GIB, described
from tests.simulator.made_recorded import message, rank_zero

from scalescope.records.prediction import Prediction
from scalescope.show.files import as_csv, as_markdown, write_figures
from scalescope.show.prediction import document
from scalescope.show.terminal import show
from scalescope.simulator.recorded_map import RecordedQuestion, predict_recorded


def predicted(sizes: dict[int, int], limit_gib: int = 80, np: tuple[int, ...] = ()) -> Prediction:
    """GPUs of so many GiB; memory of rank 0 by number of processes in GiB."""
    records = tuple(
        rank_zero(
            ranks,
            10.0,
            *([message(7.0, 8.0, ranks=ranks)] if ranks > 1 else []),
            device="gpu",
            backend="nccl",
            engine="fsdp2",
            memory_bytes=gib * GIB,
            memory_limit_bytes=141 * GIB,
        )
        for ranks, gib in sizes.items()
    )
    cluster = described(1e5, slots=8, nodes=4, device="gpu", memory_bytes=limit_gib * GIB)
    counts = np or tuple(sizes)
    return predict_recorded(RecordedQuestion(what="train.py", records=records, cluster=cluster, np=counts))


def shown(prediction: Prediction, *, details: bool = False) -> str:
    out = io.StringIO()
    made = document(prediction)
    show(made, Console(file=out, width=100, no_color=True), details=details)
    return f"{made.answer}\n{out.getvalue()}"


def test_every_size_is_a_row_with_its_step_memory_and_whether_it_fits() -> None:
    text = shown(predicted({1: 83, 2: 60, 8: 30}))
    rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["1", "2", "8"]
    assert [row[-1] for row in rows] == ["no", "yes", "yes"]
    assert "[" in text  # the recommended size
    assert "does not fit: 83 GiB of 80 GiB with 1 process; 2 or more do" in " ".join(text.split())


def test_memory_of_a_process_is_told_where_every_size_fits() -> None:
    text = " ".join(shown(predicted({1: 60, 8: 20})).split())
    assert "memory of a process: 60 GiB with 1 process, 20 GiB with 8 processes, of 80 GiB" in text


def test_a_script_that_fits_nowhere_has_that_as_its_answer() -> None:
    prediction = predicted({1: 99, 8: 90})
    assert document(prediction).answer == (
        "train.py with fsdp2: does not fit: 99 GiB of 80 GiB with 1 process, and no other size of the map does."
    )
    assert prediction.recommended is None


def test_what_ran_and_what_lies_between_is_told() -> None:
    text = " ".join(shown(predicted({1: 60, 2: 40, 8: 20}, np=(1, 2, 4, 8)), details=True).split())
    assert "ran here as rank 0 of 1, 2 and 8; the sizes between them are interpolated" in text
    assert "not visible from one rank: late ranks" in text


def test_memory_that_ran_out_is_more_than_the_device_has() -> None:
    full = rank_zero(
        1, 0.0, device="gpu", memory_bytes=0, memory_limit_bytes=80 * GIB, out_of_memory="CUDA out of memory"
    )
    fits = rank_zero(8, 10.0, device="gpu", backend="nccl", memory_bytes=40 * GIB, memory_limit_bytes=80 * GIB)
    asked = RecordedQuestion(what="train.py", records=(full, fits), cluster=described(1e5, device="gpu"), np=(1, 8))
    text = " ".join(shown(predict_recorded(asked)).split())
    assert "does not fit: more than 80 GiB with 1 process; 8 or more do" in text
    assert "> 80 GiB no" in text


@pytest.mark.parametrize("sizes", [{1: 83, 2: 60, 8: 30}, {1: 99, 8: 90}])
def test_tables_and_pictures_are_made_of_any_map(sizes: dict[int, int], tmp_path: Path) -> None:
    made = document(predicted(sizes))
    assert len(as_csv(made.files["estimate"]).splitlines()) == 1 + len(sizes)
    assert "fits" in as_markdown(made)
    assert any(path.name == "map.html" for path in write_figures(made, tmp_path, ("html",)))


def test_json_names_the_sizes_that_ran_and_the_engine_of_every_cell() -> None:
    answer = document(predicted({1: 60, 8: 20})).json()
    assert list(answer["ran_as"]) == [1, 8]
    assert {cell["engine"] for cell in answer["cells"]} == {"fsdp2"}
    assert answer["recommended"]["engine"] == "fsdp2"
