"""site.toml: what jobs need at one site, and a clear line for every mistake in it."""

from pathlib import Path

import pytest

from scalescope.errors import UsageError
from scalescope.records.site import Site, load_site

EXAMPLES = Path(__file__).parents[2] / "examples" / "sites"


def site(tmp_path: Path, text: str) -> Site:
    (tmp_path / "site.toml").write_text(text)
    return load_site(str(tmp_path / "site.toml"))


def test_every_key_is_read(tmp_path: Path) -> None:
    text = """
account = "project1"
partition = "gpu"
time = "90m"
gpus = "a100:4"
modules = ["cuda/12.4", "gcc"]
container = "apptainer exec --nv '/my images/torch.sif'"
setup = ["source venv/bin/activate", "export A='b c'"]
extra = ["--exclusive", "--qos=high", "-C haswell"]
"""
    assert site(tmp_path, text) == Site(
        account="project1",
        partition="gpu",
        time_s=5400.0,
        gpus="a100:4",
        modules=("cuda/12.4", "gcc"),
        container=("apptainer", "exec", "--nv", "/my images/torch.sif"),
        setup=("source venv/bin/activate", "export A='b c'"),
        extra=("--exclusive", "--qos=high", "-C haswell"),
    )
    assert site(tmp_path, "") == Site()


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("2h", 7200.0), ("01:30:00", 5400.0), ("1-00:00:00", 86400.0), ("30:00", 1800.0), ("1-12:30", 131400.0)],
)
def test_a_time_is_read_with_its_unit_or_as_slurm_writes_it(tmp_path: Path, time: str, seconds: float) -> None:
    assert site(tmp_path, f'time = "{time}"').time_s == seconds


def test_gpus_of_a_node_are_counted(tmp_path: Path) -> None:
    assert [site(tmp_path, text).gpus_per_node for text in ("gpus = 8", 'gpus = "a100:4"', "gpus = 0", "")] == [
        8,
        4,
        0,
        0,
    ]


def test_a_setup_of_several_lines_is_one_text_or_a_list(tmp_path: Path) -> None:
    assert site(tmp_path, 'setup = """\na\nb\n"""').setup == ("a", "b")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('acount = "x"', r"there is no key 'acount' \(did you mean account or container\?\): use account, partition"),
        ("[jobs]", "there is no key 'jobs'"),
        ('account = "a b"', "Expected str matching regex .* at \\$.account"),
        ('partition = "x\\n#SBATCH --nodes=99"', "Expected str matching regex .* at \\$.partition"),
        ("account = 3", "Expected str, got int .* at \\$.account"),
        ("time = 30", "Expected str . null, got int .* at \\$.time"),
        ('time = "30"', "time '30' has no unit"),
        ('time = "soon"', "time takes a time above 0 such as 90s"),
        ("gpus = true", "got bool .* at \\$.gpus"),
        ('gpus = "many"', "matching regex .* at \\$.gpus"),
        ("modules = [1]", "Expected str, got int .* at \\$.modules"),
        ('modules = ["a\\nb"]', "does not stand on one line"),
        ('container = "apptainer \'exec"', "No closing quotation"),
        ("container = 3", "Expected str, got int .* at \\$.container"),
        ('setup = ["a\\u001bb"]', "does not stand on one line"),
        ('extra = ["exclusive"]', "matching regex .* at \\$.extra"),
        ('extra = ["--a\\n#SBATCH --b"]', "matching regex .* at \\$.extra"),
        ("a =", "is not TOML"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file_and_the_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as problem:
        site(tmp_path, text)
    assert str(problem.value).startswith(str(tmp_path / "site.toml"))
    assert "\n" not in str(problem.value)


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot read nowhere\.toml: No such file"):
        load_site("nowhere.toml")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_the_examples_are_read(path: Path) -> None:
    assert load_site(str(path)).account == "project123"
