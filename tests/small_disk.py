"""A disk that is soon full: a file system in memory, mounted and taken away by the test that needs it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import needs


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A folder of its own inside this one, with room for `size` such as 400k."""
    needs.root()
    needs.programs("mount", "umount")
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)
