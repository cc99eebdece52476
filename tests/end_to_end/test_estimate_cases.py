"""estimate and probe as a user types them, where no times are compared: other tests may run next to these."""

import json
import os

import pytest

import needs
from command_line import CommandLine
from interruption import interrupt
from scalescope.records.cluster_file import load_cluster

OWN_MODEL = """
import torch
from torch import nn

def make(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Embedding(100, width), nn.Flatten(), nn.Linear(8 * width, 4))

def batch(n):
    return torch.randint(0, 100, (n, 8))
"""


def test_a_users_own_model_for_a_described_cluster(scalescope: CommandLine) -> None:
    (scalescope.folder / "own.py").write_text(OWN_MODEL)
    (scalescope.folder / "cluster.toml").write_text(
        "nodes = 2\nslots_per_node = 2\ncores_per_node = 2\n[inside]\nbandwidth = '1 GB/s'\nlatency = '20 us'\n"
        "[between]\nbandwidth = '1 Gbit/s'\nlatency = '50 us'\n"
    )
    words = ("--cluster", "cluster.toml", "--batch", "8,32", "--seconds", "1s", "--scaling", "both", "-o", "out")
    done = scalescope("estimate", "own.py:make", *words, "--model-arg", "width=128", "--json")
    cells = json.loads(done.stdout)["cells"]
    assert {cell["np"] for cell in cells} == {1, 2, 3, 4}
    assert {cell["scaling"] for cell in cells} == {"strong", "weak"}
    assert {cell["nodes"] for cell in cells if cell["np"] > 2} == {2}
    weak = {(cell["np"], cell["batch"]): cell for cell in cells if cell["scaling"] == "weak"}
    assert weak[4, 8]["exposed_s"] > weak[2, 8]["exposed_s"]
    trusted = json.loads(done.stdout)["trusted"]
    (follow,) = [line for line in done.stderr.splitlines() if line.startswith("Next: ")]
    assert follow.startswith(f"Next: scalescope {'measure' if trusted else 'estimate'} own.py:make --")
    assert "--model-arg width=128" in follow


@pytest.mark.parametrize("backend", ["gloo", "horovod-gloo", "horovod-mpi"])
def test_links_are_probed_over_every_backend(scalescope: CommandLine, backend: str) -> None:
    if backend != "gloo":
        needs.horovod()
    if backend == "horovod-mpi":
        needs.openmpi()
    drawn = backend == "gloo"
    done = scalescope("probe", "--backend", backend, "--seconds", "0.1s", "--json", "-o", "out", pictures=drawn)
    document = json.loads(done.stdout)
    cluster = load_cluster(scalescope.folder / "out" / "cluster.toml")
    assert document["slots_per_node"] == cluster.slots_per_node
    for costs in cluster.costs:
        assert costs.backend == backend
        assert (costs.sizes_bytes[0], costs.sizes_bytes[-1]) == (4, 32 << 20)
        assert min(costs.seconds) > 0  # no order: a small message may wait longer for its core than a large one takes
        assert len(costs.seconds) == len(costs.sizes_bytes) == len(costs.cpu_seconds)
    assert {costs.operation for costs in cluster.costs} == {"allreduce", "broadcast"}
    assert cluster.overlaps[0].compute > 0.1  # below 1 when the layer alone was disturbed: nothing is cut off
    polls = backend.startswith("horovod")
    assert (cluster.overlaps[0].idle_error > 0) == polls
    assert polls or cluster.overlaps[0].idle == 1.0
    assert (scalescope.folder / "out" / "links.png").exists() == drawn


def test_an_interruption_of_the_profile_leaves_nothing_running(scalescope: CommandLine) -> None:
    blocks = scalescope.folder / "out" / "profile" / "profile-rank0.jsonl"
    interrupt(scalescope, ["estimate", "mlp", "--seconds", "60s", "-o", "out"], blocks, 1, dict(os.environ))


def test_a_model_that_needs_integers_is_told_so(scalescope: CommandLine) -> None:
    (scalescope.folder / "own.py").write_text(OWN_MODEL)
    done = scalescope("estimate", "own.py:make", "--input", "8", "--seconds", "2s", code=2)
    assert "it needs integers: --input int64:8:vocab=30000" in done.stderr.strip().splitlines()[-1]
    assert not any("Traceback" in text for text in done.stderr.splitlines())


def test_a_batch_that_does_not_fit_is_marked(scalescope: CommandLine) -> None:
    (scalescope.folder / "own.py").write_text(
        OWN_MODEL.replace("    return torch.randint", "    torch.empty(n * 2**31)\n    return torch.randint")
    )
    words = ("--np", "1", "--batch", "1,2,4096", "--seconds", "8s", "--json", "-o", "out")
    cells = json.loads(scalescope("estimate", "own.py:make", *words).stdout)["cells"]
    assert {cell["batch"]: cell["fits"] for cell in cells} == {1: True, 2: True, 4096: False}


def test_a_dry_run_starts_nothing(scalescope: CommandLine) -> None:
    done = scalescope.in_this_process("estimate", "mlp", "--np", "1,2", "--verify", "2", "--dry-run", "-o", "out")
    assert "taken here" in done.stdout
    assert "2 cells" in done.stdout
    assert not (scalescope.folder / "out").exists()
