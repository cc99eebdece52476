"""scripts/build_horovod: what it says when it cannot, what it leaves behind, and that what it installs works."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path
from types import ModuleType

import pytest

import needs

pytestmark = pytest.mark.launches

SCRIPT = Path(__file__).parents[1] / "scripts" / "build_horovod"
script = ModuleType("build_horovod")
exec(compile(SCRIPT.read_text(), SCRIPT, "exec"), script.__dict__)


def build(*options: str, python: str = sys.executable, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [python, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.fixture
def cache(tmp_path):
    """An empty cache of one's own, save for Horovod's source when it was downloaded before."""
    needs.programs("make", "c++")
    folder = tmp_path / "cache"
    sources = folder / "scalescope" / "sources"
    sources.mkdir(parents=True)
    downloaded = script.cache_home() / "sources" / f"horovod-{script.VERSION}.tar.gz"
    if downloaded.exists():
        shutil.copy(downloaded, sources)
    return folder


def processes_that_name(text: str) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(command)
    return found


def test_a_horovod_that_does_not_import_is_reported(tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise ImportError('undefined symbol')")
    checked = build("--check", PYTHONPATH=str(tmp_path))
    assert checked.returncode == 1
    assert "does not import here (ImportError: undefined symbol)" in checked.stderr
    assert checked.stderr.strip().endswith("--force")


def test_without_torch_one_line_says_so(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    told = build(python=python)
    assert told.returncode == 2
    assert told.stderr == f"build_horovod: torch is missing; type: {python} -m pip install torch\n"


@pytest.mark.parametrize(
    ("programs", "environment", "said"),
    [
        ([], {}, "no C++ compiler (c++ or g++ or clang++)"),
        (["make"], {"CXX": "/no/such/c++ -O2"}, "no C++ compiler (/no/such/c++)"),
        (["c++"], {}, "make is missing"),
    ],
)
def test_without_a_compiler_one_line_says_so(tmp_path, programs, environment, said):
    for name in programs:
        (tmp_path / name).symlink_to(shutil.which("true"))
    told = build(PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"), **environment)
    assert told.returncode == 2
    assert len(told.stderr.splitlines()) == 1
    assert said in told.stderr
    assert "apt-get install" in told.stderr
    assert "so Gloo alone; for MPI first: apt-get install openmpi-bin libopenmpi-dev" in told.stdout


def test_without_pythons_headers_one_line_says_so_before_anything_is_built(cache, tmp_path):
    """With a Python whose home has the standard library and no headers, as Debian's without python3-dev."""
    library = Path(sysconfig.get_path("stdlib"))
    home = tmp_path / "home"
    (home / "lib").mkdir(parents=True)
    (home / "lib" / library.name).symlink_to(library)
    borrowed = sysconfig.get_path("purelib")
    told = build(XDG_CACHE_HOME=str(cache), PYTHONHOME=str(home), PYTHONPATH=borrowed)
    assert told.returncode == 2
    assert re.fullmatch(r"build_horovod: \S+/Python\.h is missing; .*apt-get install python3-dev\n", told.stderr)
    assert not (cache / "scalescope" / "logs").exists()


def test_a_failed_build_shows_the_lines_that_tell_and_keeps_the_log(cache, tmp_path):
    broken = tmp_path / "broken-c++"
    broken.write_text("#!/bin/sh\necho 'fatal error: this compiler is broken' >&2\nexit 1\n")
    broken.chmod(0o755)
    told = build("--without-mpi", XDG_CACHE_HOME=str(cache), CXX=str(broken))
    assert told.returncode == 1, told.stdout
    assert "fatal error: this compiler is broken" in told.stderr
    *lines, last = told.stderr.splitlines()
    assert 1 <= len(lines) <= 30
    log = Path(last.rsplit(" ", 1)[-1])
    assert log.is_relative_to(cache)
    assert "CMake Error" in log.read_text()
    assert list(cache.rglob("*.whl")) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_build_that_is_stopped_leaves_nothing(cache, tmp_path, number):
    work = tmp_path / "tmp"
    work.mkdir()
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "TMPDIR": str(work)}
    with subprocess.Popen([sys.executable, SCRIPT, "--force"], env=environment, stdout=subprocess.PIPE) as running:
        deadline = time.monotonic() + 120
        while not any("cc1plus" in command for command in processes_that_name(str(work))):
            assert running.poll() is None
            assert time.monotonic() < deadline, "the compiler never started"
            time.sleep(0.1)
        running.send_signal(number)
        assert running.wait(60) == 128 + number
    deadline = time.monotonic() + 30
    while processes_that_name(str(work)) and time.monotonic() < deadline:  # killed, but a moment may pass
        time.sleep(0.1)
    assert processes_that_name(str(work)) == []
    assert list(work.iterdir()) == []
    assert list(cache.rglob("*.whl*")) == []


def test_the_cached_wheel_is_installed_once_and_works(tmp_path):
    """In a second environment that borrows everything but Horovod from this one."""
    needs.horovod()
    needs.openmpi()
    key = script.cache_key(script.installed("torch"), script.openmpi_version())
    wheels = list((script.cache_home() / "wheels" / key).glob("*.whl"))
    needs.need(len(wheels) == 1, "a wheel in the cache (make horovod)")
    venv.create(tmp_path / "second", with_pip=False, symlinks=True)
    site = tmp_path / "second" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith("horovod"):
            (site / path.name).symlink_to(path)
    python = str(tmp_path / "second" / "bin" / "python")
    first, second = build(python=python), build(python=python)
    assert first.returncode == 0, first.stderr
    assert f"installing {wheels[0]}" in first.stdout
    assert (site / "horovod" / "torch" / "__init__.py").exists()
    assert second.returncode == 0, second.stderr
    assert "installing" not in second.stdout
    for told in (first, second):
        assert re.search(r"Horovod 0\.28\.1 works with torch \S+; controllers built: mpi, gloo$", told.stdout.strip())


def test_what_makes_wheels_differ_is_in_the_key(monkeypatch):
    for name in [name for name in os.environ if script.BUILD_SETTING.match(name)]:
        monkeypatch.delenv(name)
    plain = script.cache_key("2.13.0+cpu", None)
    assert plain.startswith("horovod-0.28.1-torch-2.13.0+cpu-cp3")
    keys = {plain, script.cache_key("2.12.0", None), script.cache_key("2.13.0+cpu", "4.1.4")}
    monkeypatch.setenv("HOROVOD_TIMELINE", "/tmp/t.json")
    assert script.cache_key("2.13.0+cpu", None) == plain
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    keys.add(script.cache_key("2.13.0+cpu", None))
    assert len(keys) == 4


def test_a_file_reaches_the_cache_whole_or_not_at_all(tmp_path):
    made = tmp_path / "made.whl"
    made.write_bytes(b"whole")
    target = tmp_path / "cache" / "key" / "made.whl"
    script.keep(made, target)
    assert target.read_bytes() == b"whole"
    with pytest.raises(FileNotFoundError):
        script.keep(tmp_path / "absent.whl", target)
    assert target.read_bytes() == b"whole"
    assert [path.name for path in target.parent.iterdir()] == ["made.whl"]


def test_the_lines_that_tell_are_found_in_a_long_log():
    noise = [f"[ {n}%] Building CXX object {n}.o" for n in range(99)]
    log = [*noise, "x.h:3: error: C++17 is required", "  3 | #error", "    ^", *noise, "make: *** [all] Error 2"]
    told = script.telling_lines("\n".join(log))
    assert told == ["x.h:3: error: C++17 is required", "  3 | #error", "    ^", noise[0], "make: *** [all] Error 2"]
    assert (
        script.telling_lines("\n".join([*log, "Traceback (most recent call last):", "CalledProcessError: error"]))
        == told
    )
    assert script.telling_lines("Traceback (most recent call last):\nImportError: no, an error")[-1].startswith(
        "Import"
    )
    assert script.telling_lines("\n".join(noise)) == noise[-30:]
    assert len(script.telling_lines("error\n" * 99)) == 30
