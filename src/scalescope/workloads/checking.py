"""One step before the long work, so that a model that rejects its input is found in seconds."""

import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from scalescope.errors import UsageError
from scalescope.workloads.references import one_line

if TYPE_CHECKING:
    from torch import Tensor

    from scalescope.workloads.loading import Workload

Result = TypeVar("Result")

WANTS_INTEGERS = re.compile(r"scalar types: Long|index tensor|used as indices must be")
WRONG_COUNT = re.compile(r"forward\(\) (missing|takes)")
KNOWN_CAUSES = (
    (re.compile("index out of range"), "its vocabulary is smaller: lower vocab=N in --input"),
    (re.compile("more than 1 value per channel"), "its BatchNorm needs more samples: give a larger --batch"),
    (re.compile("allocate|out of memory"), "the memory is too small: give a smaller --batch"),
)


def check(workload: "Workload", batch: int) -> None:
    """One forward, loss and backward with `batch` samples; UsageError where the parts do not fit together."""
    model, loss_name = workload.spec.model, workload.spec.loss or "the loss"
    if batch < 1:
        raise UsageError(f"a batch of {batch} samples cannot be trained: give --batch 1 or more")
    inputs = attempt(lambda: workload.batch(batch), f"batch(n) of {model} fails", "fix it, or give --input")
    target = attempt(lambda: workload.target(batch), f"target(n) of {model} fails", "fix it")
    try:
        with workload.precision("cpu"):
            output = workload.model(*inputs)
    except Exception as error:
        shapes = ", ".join(describe(tensor) for tensor in inputs)
        raise UsageError(
            f"{model} rejects its input ({shapes}): {one_line(error)}; {advice(workload, inputs, error)}"
        ) from error
    compared = f" with target(n) ({describe(target)})" if target is not None else ""
    loss = attempt(
        lambda: workload.loss(output, target),
        f"{loss_name} rejects the output ({describe(output)}) of {model}{compared}",
        "give another --loss, or change target(n)",
    )
    if loss.numel() != 1:
        raise UsageError(f"{loss_name} returns {describe(loss)}: a loss must return one number; take its mean")
    attempt(loss.backward, f"no gradients for {model}", "the loss must depend on the model's parameters")
    workload.model.zero_grad(set_to_none=True)


def attempt(work: "Callable[[], Result]", problem: str, next_action: str) -> Result:
    """The result of `work`; whatever it raises becomes one line with the next action."""
    try:
        return work()
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{problem}: {one_line(error)}; {next_action}") from error


def describe(value: object) -> str:
    """A tensor's shape and kind of number (`4x3x32x32 float32`), the type's name of anything else."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return type(value).__name__
    return " ".join(["x".join(map(str, shape)), str(dtype).removeprefix("torch.")]).strip()


def advice(workload: "Workload", inputs: "tuple[Tensor, ...]", error: Exception) -> str:
    """Advise what to change so that the model accepts its input."""
    message = str(error)
    if isinstance(error, TypeError) and WRONG_COUNT.search(message):
        arguments = ", ".join(inspect.signature(workload.model.forward).parameters)
        return f"give one --input for every argument of forward({arguments})"
    if WANTS_INTEGERS.search(message):
        sizes = ("x".join(map(str, tensor.shape[1:])) for tensor in inputs)
        return "it needs integers: " + " ".join(f"--input int64:{size}:vocab=30000" for size in sizes)
    for cause, answer in KNOWN_CAUSES:
        if cause.search(message):
            return answer
    given = "give the shape of one sample, for example --input 3x224x224"
    own_batch = ":" in workload.spec.model and not workload.spec.inputs
    return f"change batch(n) next to the model, or {given}" if own_batch else given
