"""Whether a rank has room for what a search would like to allocate."""

from pathlib import Path

import torch

from scalescope.engines.room_live import no_room_for

CPU = torch.device("cpu")
GIB = 1 << 30


def test_half_of_what_is_free_may_be_taken_by_all_ranks_of_a_host(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    places = {"proc": str(tmp_path), "cgroup": str(tmp_path)}
    assert no_room_for(4 * GIB, CPU, 1, **places) == ""
    assert no_room_for(4 * GIB, CPU, 2, **places) == "4096 MiB are needed and 4096 MiB are free"
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text(f"{5 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {2 * GIB}\n")
    assert no_room_for(4 * GIB, CPU, 1, **places) == ""
    (tmp_path / "memory.max").write_text(f"{6 * GIB}\n")
    assert no_room_for(1 * GIB, CPU, 1, **places) == ""
    assert "3072 MiB are free" in no_room_for(2 * GIB, CPU, 1, **places)


def test_unknown_memory_counts_as_room(tmp_path: Path) -> None:
    assert no_room_for(1 << 40, CPU, 8, proc=str(tmp_path), cgroup=str(tmp_path)) == ""
