"""estimate as a user types it: a real profile, real links, real verification; test_estimate_cases.py has the rest."""

import contextlib
import json
import os
import platform
import shutil
from pathlib import Path

import msgspec
import pytest

import scalescope as api
from command_line import CommandLine
from interruption import interrupt
from scalescope.cli import run
from scalescope.estimation.begun import unfinished_estimate
from scalescope.jobs.folders import held, result_folder
from scalescope.records.cluster_file import load_cluster
from scalescope.records.prediction import Prediction, Residual
from scalescope.records.profile import ModelProfile
from scalescope.records.request import EstimatePlan
from scalescope.records.run import Run
from scalescope.records.store import load, load_lines, save
from scalescope.records.timeline import Timeline

WORDS = ("estimate", "mlp", "--np", "1,2", "--batch", "16,64", "--seconds", "2s", "--verify", "1", "--launches", "2")


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandLine, str, dict[str, int]]:
    """The map of the mlp on this machine, interrupted while a cell was run for real; what was said and kept when."""
    line = CommandLine(tmp_path_factory.mktemp("estimate"))
    environment = {**os.environ, "XDG_CACHE_HOME": str(line.folder / "cache")}
    said = interrupt(line, [*WORDS, "--json", "-o", "out"], line.folder / "out/verify-np2/runs.jsonl", 1, environment)
    kept = ("plan.json", "profile.json", "cluster.toml", "estimate.json", "verify-np2/runs.jsonl")
    return line, said, {name: (line.folder / "out" / name).stat().st_mtime_ns for name in kept}


@pytest.fixture(scope="module")
def estimated(interrupted) -> tuple[CommandLine, dict, Path]:
    """The same command once more; its JSON and the user's cache."""
    line, _, _ = interrupted
    cache = line.folder / "cache"
    done = line(*WORDS, "--json", "-o", "out", pictures=True, XDG_CACHE_HOME=str(cache))
    assert "Continuing the interrupted estimate" in done.stderr
    return line, json.loads(done.stdout), cache


def test_the_map_is_shown_before_its_checks_and_an_interruption_keeps_it(interrupted) -> None:
    line, said, _ = interrupted
    assert "Before its checks the map recommends" in said
    assert "type the same command to continue" in said
    assert load(line.folder / "out" / "estimate.json", Prediction).checks == ()


def test_the_same_command_continues_where_it_was_interrupted(interrupted, estimated) -> None:
    line, _, kept = interrupted
    first = load_lines(line.folder / "out/verify-np2/runs.jsonl", Run)
    assert [run.round for run in first] == [1, 2]
    assert first[0].folder != first[1].folder
    blocks = line.folder / "out/profile/profile-rank0.jsonl"
    assert blocks.stat().st_mtime_ns < kept["profile.json"]  # not profiled again
    _, document, _ = estimated
    assert len(document["checks"]) == 1
    done = line(*WORDS, "-o", "out", code=2)
    assert "already holds an estimate" in done.stderr.strip().splitlines()[-1]


def test_without_a_folder_the_newest_interrupted_estimate_is_continued(interrupted, estimated) -> None:
    line, _, _ = interrupted
    results = line.folder / "results" / "estimate-20260101-000000"
    shutil.copytree(line.folder / "out", results)
    plan = load(results / "plan.json", EstimatePlan)
    save(msgspec.structs.replace(plan, finished=False), results / "plan.json")
    with contextlib.chdir(line.folder):
        assert unfinished_estimate(plan) == ""
        assert unfinished_estimate(msgspec.structs.replace(plan, finished=False)) == str(
            results.relative_to(line.folder)
        )
        with held(results):
            assert unfinished_estimate(msgspec.structs.replace(plan, finished=False)) == ""


def test_the_map_has_every_cell_with_its_interval(estimated) -> None:
    _, document, _ = estimated
    cells = {(cell["np"], cell["batch"]): cell for cell in document["cells"]}
    assert set(cells) == {(1, 16), (1, 64), (2, 16), (2, 64)}
    for (np, batch), cell in cells.items():
        assert cell["global_batch"] == np * batch
        assert cell["low_s"] <= cell["step_s"] <= cell["high_s"]
        assert cell["memory_bytes"] > 50e6
        assert (cell["speedup"] == pytest.approx(1) and cell["exposed_s"] == 0) or np == 2
    assert cells[2, 16]["exposed_s"] > 0
    assert (document["recommended"] is None) == (not document["trusted"])
    assert [cell["verified"] for cell in cells.values()].count(True) == sum(
        not check["disturbed"] for check in document["checks"]
    )


def test_what_was_verified_is_remembered_for_the_next_estimate(estimated, monkeypatch: pytest.MonkeyPatch) -> None:
    line, document, cache = estimated
    (check,) = document["checks"]
    assert check["np"] == 2
    assert check["measured_s"] > 0
    assert check["inside"] == (check["low_s"] <= check["measured_s"] <= check["high_s"])
    kept = load_lines(cache / "scalescope" / "residuals-v2.jsonl", Residual)
    quiet = load(line.folder / "out" / "estimate.json", Prediction).checks[0].disturbed is False
    trusted = not document["doubts"] or document["checks"][0]["disturbed"]
    assert len(kept) == int(quiet and trusted)  # on a busy machine nothing is remembered
    remembered = cache / "scalescope" / "residuals-v2.jsonl"
    remembered.parent.mkdir(parents=True, exist_ok=True)
    residual = Residual(
        hostname=platform.node(), engine="ddp", model="mlp", checks=1, log_error=0.1, seconds_since_epoch=0
    )
    remembered.write_bytes(b"damaged\n" + msgspec.json.encode(residual) + b"\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    with contextlib.chdir(line.folder):
        with result_folder("estimate", Path("again")) as folder:  # as if interrupted after its probe
            shutil.copy("out/cluster.toml", folder)
        later = api.estimate("mlp", np=(1, 2), batch=(16,), profile="out/profile.json", seconds=2.0, folder="again")
    assert later.calibration is not None
    assert later.calibration.estimates == 1
    assert any("1 damaged lines" in warning for warning in later.warnings)
    assert [(cell.np, cell.batch) for cell in later.cells] == [(1, 16), (2, 16)]
    assert later.cells[0].speedup == pytest.approx(1)


def test_profile_and_links_serve_for_another_map(estimated) -> None:
    line, _, _ = estimated
    files = ("--profile", "out/profile.json", "--cluster", "out/cluster.toml")
    words = ("mlp", "--np", "1,2", "--batch", "16,64", *files, "--json", "-o", "third")
    third = json.loads(line("estimate", *words).stdout)
    assert [cell["np"] for cell in third["cells"]] == [1, 2, 1, 2]


def test_everything_is_on_disk_and_can_be_drawn_again(estimated, tmp_path: Path) -> None:
    line, document, _ = estimated
    folder = line.folder / "out"
    profile = load(folder / "profile.json", ModelProfile)
    assert {point.batch for point in profile.points} == {16, 64}
    assert [crowd.copies for crowd in profile.crowds if crowd.batch == 16] == [2]
    cluster = load_cluster(folder / "cluster.toml")
    assert {(costs.backend, costs.operation, costs.ranks) for costs in cluster.costs} == {
        ("gloo", "allreduce", 2),
        ("gloo", "broadcast", 2),
    }
    prediction = load(folder / "estimate.json", Prediction)
    assert len(prediction.cells) == len(document["cells"])
    step = load(folder / "step.json", Timeline)
    assert {"forward", "backward", "communication", "optimizer"} <= {span.activity for span in step.spans}
    for name in ("map", "step"):
        for ending in ("png", "html"):
            assert (folder / f"{name}.{ending}").stat().st_size > 1000
    assert {path.name for path in api.draw(prediction, tmp_path)} >= {"map.png", "map.html"}
    assert api.tabulate(prediction, "csv").count("\n") >= 5
    assert "| 2 " in api.tabulate(prediction)


CLUSTER = "nodes = 1\nslots_per_node = 2\ncores_per_node = 2\n"
BAD = {
    "no such model": (["estimate", "resnet"], "no built-in model 'resnet'"),
    "np beyond this machine": (["estimate", "mlp", "--np", "1..512"], "describe a cluster with --cluster"),
    "np beyond the cluster": (["estimate", "mlp", "--cluster", "c.toml", "--np", "3"], "slots of c.toml: lower it"),
    "a missing number": (["estimate", "mlp", "--cluster", "missing.toml"], "slots_per_node"),
    "an impossible number": (["estimate", "mlp", "--cluster", "zero.toml"], "nodes"),
    "no such cluster": (["estimate", "mlp", "--cluster", "none.toml"], "none.toml"),
    "no link": (["estimate", "mlp", "--cluster", "c.toml", "--profile", "mlp.json"], "[inside]"),
    "another model's profile": (["estimate", "cnn", "--profile", "mlp.json"], "is a profile of mlp, not of cnn"),
    "another torch's profile": (["estimate", "mlp", "--profile", "old.json"], "was taken with torch 1.0.0"),
    "not a profile": (["estimate", "mlp", "--profile", "c.toml"], "is not a readable scalescope record"),
    "an unknown knob": (
        ["estimate", "mlp", "--knob", "bucket=3"],
        "no knob 'bucket' (did you mean bucket_cap_mb",
    ),
    "an unknown engine": (["estimate", "mlp", "--engine", "none"], "--engine takes ddp, horovod or fsdp2"),
    "a bad fraction": (["estimate", "mlp", "--efficiency", "80"], "--efficiency takes a fraction"),
    "no such backend": (["probe", "--backend", "smoke"], "there is no backend 'smoke'"),
    "nccl without GPUs": (["probe", "--backend", "nccl", "--device", "cpu"], "nccl needs GPUs"),
}


@pytest.mark.parametrize(("words", "said"), BAD.values(), ids=BAD.keys())
def test_bad_input_gets_one_line(words, said, estimated, tmp_path, monkeypatch, capfd) -> None:
    line, _, _ = estimated
    profile = (line.folder / "out" / "profile.json").read_text()
    (tmp_path / "mlp.json").write_text(profile)
    torch = json.loads(profile)["torch"]
    (tmp_path / "old.json").write_text(profile.replace(f'"torch": "{torch}"', '"torch": "1.0.0"'))
    (tmp_path / "c.toml").write_text(CLUSTER)
    (tmp_path / "zero.toml").write_text(CLUSTER.replace("nodes = 1", "nodes = 0"))
    (tmp_path / "missing.toml").write_text("nodes = 1\ncores_per_node = 2\n")
    monkeypatch.chdir(tmp_path)
    assert run(list(words)) == 2
    error = capfd.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("scalescope: ")
    assert said in error
