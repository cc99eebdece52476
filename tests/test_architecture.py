"""The house as a test: which room may import which, and how little `--help` needs."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import scalescope

PACKAGE = Path(scalescope.__file__).parent
LEAVES = {
    "__version__",
    "errors",
    "host",
    "intervals",
    "line_pattern",
    "named_paths",
    "progress",
    "options",
    "stats",
    "steady",
    "text",
    "units",
    "warmup",
}
LEVELS = [
    {"records"},
    {"engines"},
    {"launchers", "schedulers", "workloads", "traces"},
    {"agent", "simulator"},
    {"jobs"},
    {"measurement"},
    {"logs"},
    {"estimation", "diagnosis", "tuner"},
    {"studies"},
    {"verbs"},
    {"api"},
    {"cli"},
]
ROOMS = set().union(*LEVELS)


def allowed(room: str) -> set[str]:
    """What a room may import of ours, itself included."""
    if room in LEAVES:
        return LEAVES
    if room == "agent":  # it names the live halves of engines, and imports nothing of ours: see below
        return {"agent", "engines"}
    if room == "show":
        return {"show", "records", "engines"} | LEAVES
    shown = {"show"} if room in ("verbs", "api", "cli") else set()
    below: set[str] = set()
    for level in LEVELS:
        if room in level:
            return below | {room} | LEAVES | shown
        below |= level
    raise AssertionError(f"room '{room}' has no level: add it to the design and to this test")


def imported(source: str) -> set[str]:
    """Rooms of scalescope that a file imports or names, anywhere in it; `scalescope` for the package itself."""
    rooms = set()
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A string such as "scalescope.jobs.train_model" is imported by somebody, or started with -m.
            named = re.fullmatch(r"scalescope\.(\w+)(\.\w*)*", node.value)
            names = [named[0]] if named and named[1] in ROOMS | LEAVES | {"show"} else []
        ours = [name.split(".") for name in names if name.split(".")[0] == "scalescope"]
        rooms |= {name[1] if len(name) > 1 else "scalescope" for name in ours}
    return rooms


@pytest.mark.parametrize(
    ("source", "rooms"),
    [
        ("import scalescope.jobs.plan", {"jobs"}),
        ("def f():\n    from scalescope import __version__, measure", {"__version__", "measure"}),
        ("import scalescope", {"scalescope"}),
        ('START = "scalescope.cli.tune_beside"', {"cli"}),
        ('import_module(f"scalescope.workloads.{name}")', {"workloads"}),
        ('KEY = "scalescope.words"', set()),
        ('"""Describes scalescope.cli to people."""', set()),
    ],
)
def test_every_way_to_name_a_room_is_seen(source: str, rooms: set[str]) -> None:
    assert imported(source) == rooms


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in ROOMS | LEAVES)


def test_imports_point_one_way() -> None:
    wrong = {}
    for path in SOURCES:
        name = path.relative_to(PACKAGE)
        if others := imported(path.read_text()) - allowed(name.parts[0].removesuffix(".py")):
            wrong[str(name)] = others
    assert wrong == {}


def test_what_runs_in_ranks_needs_only_the_standard_library_torch_and_horovod() -> None:
    allowed_names = sys.stdlib_module_names | {"torch", "horovod"}
    for path in (*(PACKAGE / "engines").glob("*_live.py"), *(PACKAGE / "agent").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed_names, path
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module is not None
                assert node.module.split(".")[0] in allowed_names, path
            elif isinstance(node, ast.ImportFrom) and path.parent.name == "engines":
                files = [node.module] if node.module else [alias.name for alias in node.names]
                assert all(name.endswith("_live") or name == "hierarchical" for name in files), path


ENGINE_NAMES = {"ddp", "horovod", "fsdp2", "fsdp"}
# Files outside engines/ that may name an engine, and why: what is special about one stands in its class.
NAMES_AN_ENGINE = {
    "cli/horovodrun.py": "a line of horovodrun trains with Horovod",
    "jobs/machine.py": "doctor asks for the package",
    "launchers/horovodrun.py": "the package whose launcher it is",
    "logs/autotune.py": "reads the log of Horovod's autotune",
    "records/request.py": "the engine of estimate; records are below engines",
    "show/autotune.py": "what Horovod's autotune is compared with: Horovod's defaults",
    "show/explanation.py": "a key of the JSON and a section, for the figures that timelines alone have",
    "traces/horovod/reading.py": "the format of one engine",
    "tuner/native.py": "drives Horovod's autotune",
    "tuner/context.py": "scalescope.tuning takes a model in DistributedDataParallel",
}


def names_an_engine(source: str) -> bool:
    """Whether a file compares with the name of an engine, imports one, or is told by a flag that it is one."""
    engine = rf"({'|'.join(ENGINE_NAMES)})"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in ENGINE_NAMES:
            return True
        is_flag = isinstance(node, ast.arg) and node.annotation is not None and ast.unparse(node.annotation) == "bool"
        if is_flag and re.search(rf"(^|_){engine}(_|$)", node.arg):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scalescope.engines"):
            names = [node.module.removeprefix("scalescope.engines"), *(alias.name for alias in node.names)]
            if any(re.fullmatch(rf"\.?{engine}\d?(_live)?", name.lower()) for name in names):
                return True
    return False


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('if engine == "horovod": pass', True),
        ("def blocks(*, horovod: bool): pass", True),
        ("from scalescope.engines import DDP", True),
        ("from scalescope.engines.horovod import HOROVOD", True),
        ("from scalescope.engines import ddp_live", True),
        ('"""Reads what ddp left."""', False),
        ("from scalescope.engines import USUAL", False),
        ("def refusal(ddp: Any): pass", False),
    ],
)
def test_every_way_to_name_an_engine_is_seen(source: str, names: bool) -> None:
    assert names_an_engine(source) == names


def test_only_these_files_outside_engines_name_an_engine() -> None:
    outside = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "engines"]
    found = {str(path.relative_to(PACKAGE)) for path in outside if names_an_engine(path.read_text())}
    assert found == set(NAMES_AN_ENGINE)


@pytest.mark.parametrize(
    ("fact", "pattern", "homes"),
    [
        ("threads per rank", r"cores // max\(", {"host.py"}),
        ("cores a job may use", r"sched_getaffinity", {"host.py", "engines/group_live.py"}),  # ranks have no host.py
        ("parts of a step", r'"exposed_s", "exposed communication"', {"records/timeline.py"}),
        ("phases", r'"warmup", "steady"', {"records/run.py"}),
        ("the efficiency goal", r"(?i)(goal|efficien)\w*(: \w+)? = 0\.\d", {"records/request.py"}),
        ("the name of a training", r"_?PYTHON_LAUNCHERS = |LAUNCH_PROGRAMS = ", {"records/training_name.py"}),
        ("steady state", r"(?m)^def (warmup_steps|enough_steps|steadiness|blocks)\b", {"warmup.py", "steady.py"}),
        ("the best batch", r"def best_batch\b", {"records/scaling.py"}),
        ("knobs that a wrapper takes", r"is_argument=True", {"engines/ddp.py", "engines/fsdp2.py"}),
        ("the controller of Horovod's ranks", r'get\("controller"', {"engines/horovod.py"}),
        ("exposed communication", r"def exposed\b", {"records/timeline.py"}),
        ("confidence levels", r"(?i)(confiden|level|measured|predicted)\w* = 0\.9", {"stats.py"}),
        ("NAME=VALUE", r'partition\("="\)', {"text.py"}),
        ("how a duration is read", r"def parse_(seconds|clock)\b", {"units.py"}),
        ("how a duration is written", r"def format_seconds\b", {"units.py"}),
        ("how bytes are written", r'"KiB"', {"units.py"}),
        ("formats of pictures", r'"html", "png"', {"records/request.py"}),
        ("system packages", r"openmpi-bin", {"launchers/mpirun.py"}),
        ("the rank that a launcher tells", r'"OMPI_COMM_WORLD_RANK"', {"agent/recorder.py"}),
        ("files of a result folder", r'"(plan|measurement|scaling|explanation|tuning)\.json"', {"records/files.py"}),
        ("no engine", r"NO_ENGINE = ", {"records/job.py", "engines/group_live.py"}),  # ranks have no records
    ],
)
def test_a_fact_is_declared_once(fact: str, pattern: str, homes: set[str]) -> None:
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if re.search(pattern, path.read_text())}
    assert found == homes, fact


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


@pytest.mark.launches
def test_help_imports_little() -> None:
    loaded = modules_after("from scalescope.cli import run; run(['--help']); run(['estimate', '--help'])")
    heavy = {"torch", "numpy", "scipy", "sklearn", "altair", "pandas", "horovod", "pydantic"}
    assert not loaded & heavy
    assert len(loaded) < 500  # 2,000 with torch


@pytest.mark.launches
def test_import_of_the_package_imports_nothing_else_of_ours() -> None:
    ours = {name for name in modules_after("import scalescope") if name.startswith("scalescope.")}
    assert ours == set()


DOCUMENT = Path(__file__).parents[1] / "docs" / "reference" / "architecture.md"


def places() -> list[tuple[str, str, str]]:
    """What docs/reference/architecture.md says to open: the purpose, a file and a name in it."""
    rows = [
        line.split("|")[1:3]
        for line in DOCUMENT.read_text().split("| to add or change |")[1].split("\n\n")[0].split("\n")
    ]
    return [
        (purpose.strip(), file, name)
        for purpose, where in (row for row in rows[2:] if len(row) == 2)
        for file, name in re.findall(r"`([\w/]+\.py)` `(\w+)`", where)
    ]


def test_nineteen_places_are_named() -> None:
    assert len({purpose for purpose, *_ in places()}) == 19


@pytest.mark.parametrize(("purpose", "file", "name"), places())
def test_the_places_that_the_document_names_exist(purpose: str, file: str, name: str) -> None:
    tree = ast.parse((PACKAGE / file).read_text())
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    assert name in defined, f"{purpose}: {file} has no {name}"


def test_every_room_is_in_the_document() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} - {"api"}
    assert {room for room in rooms if f"`{room}/`" not in DOCUMENT.read_text()} == set()


def test_files_that_the_documents_name_exist() -> None:
    named = {
        name
        for document in (*DOCUMENT.parents[1].rglob("*.md"), *DOCUMENT.parents[2].glob("*.md"))
        for name in re.findall(rf"`({'|'.join(ROOMS | {'charts', 'report'})})/([\w/]+\.py)", document.read_text())
    }
    assert [f"{room}/{file}" for room, file in sorted(named) if not (PACKAGE / room / file).is_file()] == []


def test_no_two_files_of_tests_share_a_name() -> None:
    """A run of one folder would not show it: the second one cannot be imported next to the first."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
