"""What tests need of the machine: one list of packages, and tests that say what they miss."""

import os
import re
import subprocess
from pathlib import Path

import pytest

import needs

TESTS = Path(__file__).parent
SETUP = TESTS.parent / "scripts" / "setup"
SKIPS = re.compile(r"pytest\.(skip\(|importorskip|xfail|mark\.(skip|skipif|xfail))|unittest\.skip")
APT_GET = """#!/bin/sh
echo "$*" >> {log}
case "$*" in *update*) exit 0 ;; *make*chromium*|*\\ {unknown}) exit 100 ;; esac
"""

launches = pytest.mark.launches


@pytest.mark.parametrize(("variable", "outcome"), [("0", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_a_missing_program_skips_the_test_or_fails_it_where_all_is_required(variable, outcome, monkeypatch, tmp_path):
    monkeypatch.setenv("SCALESCOPE_REQUIRE_ALL", variable)
    needs.need(True, "nothing")
    needs.programs("sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(outcome, match=r"needs ip, tc, mpirun \(apt-get install iproute2 openmpi-bin\)"):
        needs.programs("ip", "tc", "mpirun")


def test_a_program_that_no_listed_package_brings_is_refused(monkeypatch):
    monkeypatch.setenv("SCALESCOPE_REQUIRE_ALL", "0")
    with pytest.raises(LookupError, match=r"no package of scripts/packages brings tar: add it there"):
        needs.programs("tar")


@launches
def test_a_test_cannot_start_a_program_that_no_listed_package_brings():
    subprocess.run(["true"], check=True)
    with pytest.raises(LookupError, match="no package of scripts/packages brings tar"):
        subprocess.run(["tar", "--version"], check=True)


def test_a_test_without_the_mark_cannot_start_a_process():
    for start in (lambda: subprocess.run(["true"]), os.fork):
        with pytest.raises(pytest.fail.Exception, match=r"mark it with @pytest.mark.launches"):
            start()


def test_only_needs_skips():
    """Where all must run a test that skips by itself would go unnoticed."""
    sources = [path for path in TESTS.rglob("*.py") if path not in (TESTS / "needs.py", Path(__file__))]
    assert [path.name for path in sources if SKIPS.search(path.read_text())] == []


def set_up(folder: Path, user: int, unknown: str = "nothing") -> tuple[str, list[str]]:
    """What `scripts/setup system` says and does with apt-get, where no package is installed."""
    log = folder / "apt-get.log"
    programs = {"dpkg-query": "#!/bin/sh\nexit 1\n", "id": f"#!/bin/sh\necho {user}\n"}
    programs["apt-get"] = APT_GET.format(log=log, unknown=unknown)
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run([SETUP, "system"], env=environment, capture_output=True, text=True, check=True)
    return done.stderr, log.read_text().splitlines() if log.exists() else []


@launches
def test_a_plain_user_is_told_the_whole_command(tmp_path):
    told, commands = set_up(tmp_path, user=1000)
    assert commands == []
    install = f"sudo apt-get install --yes --no-install-recommends {' '.join(needs.packages())}"
    assert told.endswith(f"sudo apt-get update && {install}\n")
    assert {"chromium", "python3-dev", "g++", "slurm-wlm"} <= set(needs.packages())


@launches
def test_root_gets_every_listed_package_that_there_is(tmp_path):
    told, (update, together, *each) = set_up(tmp_path, user=0, unknown="chromium")
    assert update.startswith("update")
    assert together.split()[-len(needs.packages()) :] == list(needs.packages())
    assert [command.split()[-1] for command in each] == list(needs.packages())
    assert told.splitlines()[-1] == "setup: continuing without chromium"


@launches
def test_every_listed_program_is_there_where_all_must_run():
    needs.programs(*(name for names in needs.packages().values() for name in names))
