"""The model of a call, by name or already described."""

from collections.abc import Mapping, Sequence

from scalescope.records.profile import Scalar, WorkloadSpec


def workload_of(
    model: str | WorkloadSpec, model_args: Mapping[str, Scalar] | None, inputs: Sequence[str]
) -> WorkloadSpec:
    """What is trained; arguments and inputs belong to a model that is given by name."""
    if isinstance(model, WorkloadSpec):
        return model
    return WorkloadSpec(model=model, model_args=dict(model_args or {}), inputs=tuple(inputs))
