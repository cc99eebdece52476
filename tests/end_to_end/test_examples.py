"""The example scripts read real formats and train on them; test_measure.py has them with DDP and Horovod."""

import importlib.util
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import needs
from epochs import assert_learned, epochs_of
from watched import Forked

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    """Where torch is imported already: importing it is most of what a short training takes."""
    examples = Forked(tmp_path_factory.mktemp("examples"), agent=False)
    with examples.server:
        yield examples


def run(examples: Forked, *options: str | Path, code: int = 0) -> str:
    """What train_single.py printed: to stdout when all went well, to stderr otherwise."""
    script, words = str(EXAMPLES / "train_single.py"), [str(option) for option in options]
    beginning = f"import runpy, sys; sys.path.insert(0, {str(EXAMPLES)!r}); sys.argv = [{script!r}, *{words!r}]"
    examples.run(f"{beginning}\nrunpy.run_path({script!r}, run_name='__main__')", code)
    return examples.stderr if code else examples.stdout


def trained(examples: Forked, *options: str | Path) -> list[tuple[int, float, float]]:
    return epochs_of(run(examples, *options))


def test_resnet50_takes_a_step(examples: Forked) -> None:
    options = ["--model", "resnet50", "--samples", "16", "--batch-size", "8", "--epochs", "1", "--workers", "1"]
    ((_, loss, _),) = trained(examples, *options)
    assert 0 < loss < 100


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined, misc]
    """Writes what Python 2 wrote: byte strings as strings, so that nothing but arrays needs a global name."""

    dispatch = pickle._Pickler.dispatch.copy()  # type: ignore[attr-defined]

    def save_bytes(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + len(value).to_bytes(4, "little") + value)
        self.memoize(value)

    dispatch[bytes] = save_bytes


def learnable(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) of bytes whose brightness and tint tell their label."""
    labels = np.random.default_rng(seed).permutation(samples) % 10
    noise = np.random.default_rng(seed).integers(0, 20, (samples, 3, 32, 32))
    tints = np.random.default_rng(0).integers(0, 230, (10, 3, 1, 1))
    return (tints[labels] + noise).astype(np.uint8), labels


def write_cifar10_python(folder: Path) -> None:
    (folder / "cifar-10-batches-py").mkdir()
    for seed, name in enumerate(["data_batch_1", "data_batch_2", "test_batch"]):
        images, labels = learnable(100, seed)
        batch = {b"batch_label": b"made up", b"labels": labels.tolist(), b"data": images.reshape(100, -1)}
        with (folder / "cifar-10-batches-py" / name).open("wb") as stream:
            Python2Pickler(stream, protocol=2).dump(batch)
        file = folder / "cifar-10-batches-py" / name
        file.write_bytes(file.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))


def write_cifar10_binary(folder: Path) -> None:
    for seed, name in enumerate(["data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"]):
        images, labels = learnable(100, seed)
        records = np.concatenate([labels[:, None].astype(np.uint8), images.reshape(100, -1)], axis=1)
        (folder / name).write_bytes(records.tobytes())


def write_svhn(folder: Path) -> None:
    needs.need(importlib.util.find_spec("scipy") is not None, "SciPy (pip install scipy)")
    from scipy.io import savemat

    for seed, (name, samples) in enumerate([("train", 200), ("test", 100)]):
        images, labels = learnable(samples, seed)
        digits = np.where(labels == 0, 10, labels)[:, None].astype(np.uint8)
        savemat(folder / f"{name}_32x32.mat", {"X": images.transpose(2, 3, 1, 0), "y": digits})


@pytest.mark.parametrize(
    ("dataset", "write"),
    [("cifar10", write_cifar10_python), ("cifar10", write_cifar10_binary), ("svhn", write_svhn)],
)
def test_an_example_learns_from_real_files_of_a_dataset(
    examples: Forked, tmp_path: Path, dataset: str, write: object
) -> None:
    assert callable(write)
    write(tmp_path)
    options = ["--dataset", dataset, "--data", tmp_path, "--batch-size", "10", "--epochs", "3"]
    assert_learned(trained(examples, *options))


def test_a_harmful_pickle_runs_nothing(examples: Forked, tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "harmed"),)

    for name in ("data_batch_1", "test_batch"):
        (tmp_path / name).write_bytes(pickle.dumps({b"data": Harmful(), b"labels": []}, protocol=2))
    assert "does not belong in a CIFAR10 file" in run(examples, "--data", tmp_path, code=1)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("code", "options", "message"),
    [
        (1, ["--dataset", "svhn", "--data", "."], "no train_32x32.mat: check --data"),
        (1, ["--data", "."], "no CIFAR10 files (data_batch_[1-5] or data_batch_[1-5].bin) in .: check --data"),
        (2, ["--data", ".", "--samples", "8"], "--samples is for made-up data: remove it or --data"),
    ],
)
def test_wrong_options_say_what_to_change(examples: Forked, code: int, options: list[str], message: str) -> None:
    assert message in run(examples, *options, code=code)


def test_the_gpt_trains_alike_in_ddp_and_in_shards() -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    losses = []
    for engine in ("ddp", "fsdp2"):
        words = [*start, str(EXAMPLES / "train_gpt.py"), "--engine", engine, "--steps", "6", "--layers", "2"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=200, check=True)
        told = re.search(rf"^{engine}, 2 ranks: [\d.]+ ms a step, loss ([\d.]+)$", done.stdout, re.MULTILINE)
        assert told, done.stdout
        losses.append(told[1])
    assert losses[0] == losses[1]
