"""What is trained, as plain data that reaches every rank as JSON."""

import msgspec

Scalar = int | float | bool | str | None


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model by name or `file.py:factory`, its arguments, and how its inputs, loss and optimizer are made."""

    model: str
    model_args: dict[str, Scalar] = {}
    inputs: tuple[str, ...] = ()
    loss: str | None = None
    optimizer: str = "sgd"
    learning_rate: float | None = None
