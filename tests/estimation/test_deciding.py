"""How far a cell is from changing the recommendation, where checks are spread, and what is launched for them."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import test_verification

from scalescope.errors import UsageError
from scalescope.estimation import verification
from scalescope.estimation.verification import _distance, _spread, corrected, deciding_cells, run_checks
from scalescope.jobs.rank_program import Place
from scalescope.progress import Progress
from scalescope.records.job import Knobs
from scalescope.records.prediction import Check, Prediction
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import EstimateRequest, MeasureRequest
from scalescope.records.run import Point, Run
from scalescope.simulator.grid import Question, predict
from simulator.made import described, proportional

BATCHES = (8, 16, 32, 64, 128)


def asked(np: tuple[int, ...] = (1, 2, 4), rate: float = 1.0) -> Prediction:
    return predict(
        Question(
            profile=proportional(8, 128),
            cluster=described(rate, slots=16),
            knobs=Knobs(engine="ddp"),
            np=np,
            batches=BATCHES,
        )
    )


def with_half(prediction: Prediction, half: float) -> Prediction:
    """Every cell's interval reaches from its step divided by this to its step multiplied by it."""
    cells = tuple(
        msgspec.structs.replace(cell, low_s=cell.step_s / half, high_s=cell.step_s * half) for cell in prediction.cells
    )
    return msgspec.structs.replace(prediction, cells=cells)


@pytest.mark.parametrize("only", ["faster", "slower"])
@pytest.mark.parametrize(("half", "distance"), [(2.0, 0.5), (1.5, 1.0), (1.2, 2.0), (1.1, 4.0), (1.05, math.inf)])
def test_a_distance_is_in_half_widths_of_the_interval(
    monkeypatch: pytest.MonkeyPatch, half: float, distance: float, only: str
) -> None:
    found = with_half(asked(np=(2, 4)), half)
    cell = found.cells[3]

    def recommend(cells: Any, *_: Any) -> Any:
        """Another one once this cell, and no other, is wrong by a factor of 1.4."""
        assert [each for each in cells if each != cells[3]] == [each for each in found.cells if each != cell]
        factor = cells[3].step_s / cell.step_s
        return SimpleNamespace(np=2, batch=16 if (factor < 1 / 1.4 if only == "faster" else factor > 1.4) else 8)

    monkeypatch.setattr(verification, "recommend", recommend)
    assert _distance(cell, found) == distance


def test_cells_that_decide_come_in_the_order_of_their_distance() -> None:
    found = with_half(asked(rate=0.05), 1.5)
    chosen = deciding_cells(found, 99, 16)
    distances = [_distance(cell, found) for cell in chosen[1:]]
    near = [distance for distance in distances if distance < 9]
    assert near
    assert distances[: len(near)] == sorted(near)
    assert deciding_cells(found, 0, 16) == []


def places(count: int, sizes: tuple[int, ...] = BATCHES, np: tuple[int, ...] = (2,)) -> list[tuple[int, int]]:
    cells: Any = [SimpleNamespace(np=each, batch=size) for size in reversed(sizes) for each in np]
    return [(cell.np, cell.batch) for cell in _spread(cells, count)]


def test_the_rest_is_spread_over_the_batch_sizes_with_the_most_processes_first() -> None:
    assert [batch for _, batch in places(1)] == [8]
    assert [batch for _, batch in places(2)] == [8, 128]
    assert [batch for _, batch in places(3)] == [8, 32, 128]
    assert [batch for _, batch in places(9)] == list(BATCHES)
    assert places(3, (8, 16), (2, 4)) == [(4, 8), (4, 16), (2, 8)]
    assert places(0) == []


def test_a_map_is_widened_to_hold_its_worst_check() -> None:
    before = with_half(asked(), 1.1)
    ran = next(cell for cell in before.cells if (cell.np, cell.batch) == (2, 32))
    after = corrected(before, [Check.of(ran, [1.1**3 * ran.step_s], disturbed=True)])
    other = next(cell for cell in after.cells if (cell.np, cell.batch) == (4, 8))
    assert other.high_s == pytest.approx(1.1**3 * other.step_s)
    assert other.low_s == pytest.approx(other.step_s / 1.1**3)
    assert other.speedup_low == pytest.approx(other.speedup / 1.1**3)
    assert other.speedup_high == pytest.approx(other.speedup * 1.1**3)


@pytest.mark.parametrize(("measured", "doubted"), [(1.24, False), (1.26, True), (1 / 1.24, False), (1 / 1.26, True)])
def test_a_quarter_off_after_its_checks_a_map_is_doubted(measured: float, doubted: bool) -> None:
    before = asked()
    ran = next(cell for cell in before.cells if cell.np == 2)
    after = corrected(before, [Check.of(ran, [measured * ran.step_s], disturbed=True)])
    assert bool(after.doubts) == doubted
    assert after.trusted != doubted
    if doubted:
        assert after.doubts[0].endswith("% off one of them, and other programs were busy during every launch of it")


def request(**more: Any) -> EstimateRequest:
    workload = WorkloadSpec(model="mlp")
    return EstimateRequest(workload=workload, **{"verify": 2, "launches": 3, "timeout_s": 9.0, **more})


class Measured:
    """Measurements that would be made: a launch of each batch, of 1.5 times the step of one process."""

    def __init__(self, without: int = 0) -> None:
        self.asked: list[MeasureRequest] = []
        self.continued: list[tuple[Path, dict[str, Any]]] = []
        self._without = without

    def __call__(self, asked: MeasureRequest, progress: Any) -> Any:
        self.asked.append(asked)
        return SimpleNamespace(runs=[launch(asked.np[0], batch) for batch in asked.batch if batch != self._without])

    def again(self, folder: Path, options: dict[str, Any], progress: Any) -> Any:
        self.continued.append((folder, options))
        return SimpleNamespace(runs=[launch(2, batch) for batch in BATCHES])


def launch(np: int, batch: int) -> Run:
    point = Point(engine="ddp", np=np, batch=batch, threads_per_rank=1)
    return msgspec.structs.replace(test_verification.launch((1.0, 1.5)), point=point)


def checks(monkeypatch: pytest.MonkeyPatch, measured: Measured, folder: Path, slots: int = 16, **more: Any) -> Any:
    monkeypatch.setattr(verification, "measure", measured)
    monkeypatch.setattr(verification, "continue_measurement", measured.again)
    return run_checks(request(**more), asked(), proportional(8, 128), 3, slots, folder, Progress(), Place())


def test_cells_of_one_number_of_processes_are_one_measurement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured = Measured()
    made = checks(monkeypatch, measured, tmp_path, slots=4, verify=7)
    chosen = deciding_cells(asked(), 7, 4)
    assert sorted((check.np, check.batch) for check in made) == sorted((cell.np, cell.batch) for cell in chosen)
    assert [asked.np for asked in measured.asked] == [(2,), (4,)]
    for each in measured.asked:
        batches = tuple(sorted({cell.batch for cell in chosen if cell.np == each.np[0]}))
        assert each.batch == batches
        assert (each.quick, each.budget_s) == (True, 4.0 * len(batches) * 3)
        assert (each.threads_per_rank, each.launches, each.timeout_s, each.engines) == (3, 3, 9.0, ("ddp",))
        assert Path(each.folder) == tmp_path / f"verify-np{each.np[0]}"
    assert all(check.measured_s == pytest.approx(1.5 * check.batch) for check in made), "a second for each sample"


def test_where_threads_poll_whole_launches_are_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured = Measured()
    checks(monkeypatch, measured, tmp_path, engine="horovod")
    assert {(each.quick, each.budget_s) for each in measured.asked} == {(False, None)}


def test_a_begun_verification_is_continued(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "verify-np2").mkdir()
    (tmp_path / "verify-np2" / "plan.json").write_text("{}")
    measured = Measured()
    made = checks(monkeypatch, measured, tmp_path, slots=2, verify=1)
    assert measured.asked == []
    assert measured.continued == [(tmp_path / "verify-np2", {"timeout_s": 9.0})]
    assert [check.np for check in made] == [2]


def test_a_cell_whose_launches_all_failed_is_no_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = checks(monkeypatch, Measured(without=32), tmp_path, slots=2, verify=5)
    assert sorted(check.batch for check in made) == [8, 16, 64, 128]


def test_verify_without_a_possible_cell_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--verify needs a cell with 2 or more processes that this machine can run"):
        checks(monkeypatch, Measured(), tmp_path, slots=1)
