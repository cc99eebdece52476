"""One name for a training, in every record and however its command is typed."""

import importlib
import pkgutil
import shlex
from typing import Any

import msgspec
import pytest

from scalescope import records
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import MeasureRequest
from scalescope.records.training_name import training_name

COMMANDS = {
    "python train.py": "train.py",
    "/usr/bin/python3 -u train.py": "train.py",
    "/opt/bin/python3.11 -W ignore -X dev -O /home/me/train.py": "train.py",
    "env CUDA_VISIBLE_DEVICES=0 python ./train.py": "train.py",
    "./train.py": "train.py",
    "torchrun --nproc-per-node {np} train.py": "train.py",
    "/opt/bin/torchrun --standalone train.py": "train.py",
    "python -m torch.distributed.run --nproc-per-node={np} train.py": "train.py",
    "python3 -m torch.distributed.launch --use_env train.py": "train.py",
    "mpirun -np {np} -x PATH=/usr/bin/python -H a,b python train.py": "train.py",
    "srun -N {nodes} -n {np} -m cyclic python -u train.py": "train.py",
    "horovodrun -np {np} python train.py": "train.py",
    "accelerate launch --num_processes {np} train.py": "train.py",
    "lightning run model --devices 2 train.py": "train.py",
    "numactl --cpunodebind 0 python train.py": "train.py",
    "python train.py --lr 0.1 --data /data/imagenet": "train.py --lr 0.1 --data imagenet",
    "torchrun --nproc-per-node {np} train.py --lr 0.1 --data /data/imagenet": "train.py --lr 0.1 --data imagenet",
    "python train.py --batch-size {batch} --python python": "train.py --batch-size {batch} --python python",
    "python examples/a/train.py": "examples/a/train.py",
    "python -m pkg.train --config conf.py": "pkg.train --config conf.py",
    "torchrun --nproc-per-node {np} -m pkg.train --config conf.py": "pkg.train --config conf.py",
    "python -m torch.distributed.run -m pkg.train": "pkg.train",
    "deepspeed --module pkg.train": "pkg.train",
    "./train --config conf.py": "./train --config conf.py",
    "/opt/bin/train --config conf.py": "train --config conf.py",
    "torchrun --no-python ./train.sh": "torchrun --no-python ./train.sh",
    "python -c 'import train'": "python -c import train",
    "python -u": "python -u",
    "/opt/python": "python",
    "python -m": "python -m",
}


@pytest.mark.parametrize(("line", "name"), COMMANDS.items())
def test_training_is_named_by_what_python_runs_and_its_options(line: str, name: str) -> None:
    assert training_name(None, shlex.split(line)) == name
    assert training_name(WorkloadSpec(model="cnn"), shlex.split(line)) == "cnn"


def requests() -> list[type[Any]]:
    """Every record that has a command and a name for people."""
    modules = [
        importlib.import_module(f"scalescope.records.{each.name}") for each in pkgutil.iter_modules(records.__path__)
    ]
    found = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    found = {each for each in found if issubclass(each, msgspec.Struct)}
    return sorted(
        (
            each
            for each in found
            if "command" in each.__struct_fields__ and isinstance(getattr(each, "what", None), property)
        ),
        key=lambda each: each.__name__,
    )


def test_no_request_names_its_training_in_another_way() -> None:
    assert [each.__name__ for each in requests()] == [
        "EstimateRequest",
        "ExplainRequest",
        "MeasureRequest",
        "StudyRequest",
        "TrainingRequest",
        "TuneRequest",
    ]
    for each in requests():
        assert [each(command=tuple(shlex.split(line))).what for line in COMMANDS] == list(COMMANDS.values())
        assert each(workload=WorkloadSpec(model="cnn")).what == "cnn"
    assert MeasureRequest().what == ""
