"""The benchmarks' sections are there, and what those of measuring make of launches: no launch is made here."""

import importlib
import json
import re
from pathlib import Path

import pytest
from benchmarks import agent, coverage
from benchmarks.__main__ import FILES, main
from benchmarks.shared import lab_of

import hosts
import needs
from measurement.observed import launch, measurement
from scalescope.records.store import save

PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "benchmarks.md"


def test_every_section_is_a_function_of_its_file() -> None:
    missing = [name for name, file in FILES.items() if not hasattr(importlib.import_module(f"benchmarks.{file}"), name)]
    assert missing == []


def test_sections_that_the_page_names_in_its_headings_can_be_run() -> None:
    headings = [line for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    named = {name for line in headings for name in re.findall(r"`(\w+)`", line)}
    assert len(named) > 10
    assert named <= set(FILES)


def test_an_unknown_section_is_answered_with_all_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    shown = capsys.readouterr().out.splitlines()
    assert set(FILES) <= {line.split(" ")[0] for line in shown}


def test_what_the_agent_adds_is_the_median_pair_of_blocks_by_the_mean_over_ranks(tmp_path: Path) -> None:
    for rank in range(2):
        late = 0.02 if rank else -0.02  # one rank is late where the other is early
        blocks = [[pair, on, [1.0 + late + 0.01 * on * pair] * 3] for pair in range(3) for on in (True, False)]
        (tmp_path / f"rank{rank}.jsonl").write_text("".join(json.dumps(block) + "\n" for block in blocks))
    assert agent._added(tmp_path) == pytest.approx(0.01)


def test_launches_in_a_row_are_compared_and_a_coin_says_which_is_which(tmp_path: Path) -> None:
    folders = [tmp_path / f"study{number:02d}" for number in range(20)]
    first_is_a = 0
    for folder in folders:
        folder.mkdir()
        runs = [launch("ddp", 2, number, 0.1 * number) for number in range(1, 2 * coverage.ROUNDS + 1)]
        save(measurement(runs[:-1]), folder / "measurement.json")
        assert coverage._pairs(folder) is None
        save(measurement(runs), folder / "measurement.json")
        pairs = coverage._pairs(folder)
        assert pairs == coverage._pairs(folder)
        assert [sorted(pair) for pair in pairs or []] == [
            pytest.approx([0.1 * number, 0.1 * number + 0.1]) for number in range(1, 2 * coverage.ROUNDS, 2)
        ]
        first_is_a += sum(a < b for a, b in pairs or [])
    assert 30 <= first_is_a <= 70


@pytest.mark.launches
def test_sections_on_several_hosts_get_them() -> None:
    needs.namespaces()
    with lab_of(2, "100mbit") as lab:
        done = lab.run("h2", ["hostname"], check=True, capture_output=True, text=True)
        assert done.stdout.strip() == "h2"
        namespace = lab.namespace("h2")
        assert (hosts.NETNS_MOUNTS / namespace).exists()
    assert not (hosts.NETNS_MOUNTS / namespace).exists()
