"""What Horovod's thread did, in lines and rows for the terminal."""

from scalescope.records.explanation import Explanation, HorovodAccount, TensorAccount
from scalescope.report.terminal import cut_rows
from scalescope.text import plain
from scalescope.units import format_bytes, format_seconds

_MOST_TENSORS, _MOST_COLLECTIVES, _MOST_RANKS = 4, 5, 4


def horovod_lines(explanation: Explanation) -> list[str]:
    """Negotiation, queue and copies, collectives, fusion, cycles: a line each; none without Horovod."""
    account = explanation.horovod
    if account is None:
        return []
    return [_negotiation(account), _around(account), _collectives(account), _fusion(account), *_last_rank(account)]


def _negotiation(account: HorovodAccount) -> str:
    whole = f"negotiation {format_seconds(account.negotiation_s)}"
    if account.waiting_s is not None and account.protocol_s is not None:
        waiting, protocol = format_seconds(account.waiting_s), format_seconds(account.protocol_s)
        whole += f": {waiting} until the last rank was ready, {protocol} of protocol"
    elif account.cached:
        whole += " (cached: who was waited for is not told)"
    return f"{whole}; {format_seconds(account.first_negotiation_s)} in the first step"


def _around(account: HorovodAccount) -> str:
    told = {
        "queue": account.queue_s,
        "wait for data": account.data_wait_s,
        "copy into the fusion buffer": account.memcpy_in_s,
        "out of it": account.memcpy_out_s,
    }
    return ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in told.items())


def _collectives(account: HorovodAccount) -> str:
    """By backend, the longest first."""
    order = sorted(account.collectives_s.items(), key=lambda item: -item[1])
    told = [f"{plain(name, 30)} {format_seconds(seconds)}" for name, seconds in order[:_MOST_COLLECTIVES]]
    more = [f"{len(order) - _MOST_COLLECTIVES:,} more"] if len(order) > _MOST_COLLECTIVES else []
    return f"collectives: {', '.join([*told, *more]) or 'none'}"


def _fusion(account: HorovodAccount) -> str:
    size = "" if account.bytes_per_response is None else f" and {format_bytes(account.bytes_per_response)}"
    fused = f"{account.responses:.3g} messages of {account.tensors_per_response:.3g} tensors{size} each"
    if account.cycles is None:
        return fused
    idle = "" if account.idle_cycles is None else f", {account.idle_cycles:.3g} of them without work"
    return f"{fused}; {account.cycles:.3g} cycles{idle}"


def _last_rank(account: HorovodAccount) -> list[str]:
    counts = sorted(account.last_rank.items(), key=lambda item: -item[1])
    whole = sum(account.last_rank.values())
    if not whole:
        return []
    told = [f"rank {rank} {count:,} times" for rank, count in counts[:_MOST_RANKS]]
    return [f"last to be ready in {whole:,} negotiations: {', '.join(told)}"]


def tensor_rows(explanation: Explanation) -> list[list[str]]:
    """The tensors that take longest, heading first; medians per operation."""
    account = explanation.horovod
    if account is None:
        return []
    order = sorted(account.tensors, key=lambda tensor: -tensor.count * _seconds(tensor))
    columns = [
        ("tensor", [plain(tensor.name, 24) for tensor in order]),
        ("size", ["" if tensor.bytes is None else format_bytes(tensor.bytes) for tensor in order]),
        ("count", [f"{tensor.count:,}" for tensor in order]),
        ("negot.", [format_seconds(tensor.negotiation_s) for tensor in order]),
        ("queue", [format_seconds(tensor.queue_s) for tensor in order]),
        ("data", [format_seconds(tensor.data_wait_s) for tensor in order]),
        ("memcpy", [format_seconds(tensor.memcpy_s) for tensor in order]),
        ("collect.", [format_seconds(tensor.collective_s) for tensor in order]),
    ]
    return cut_rows(columns, _MOST_TENSORS, "tensor")


def _seconds(tensor: TensorAccount) -> float:
    return tensor.negotiation_s + tensor.queue_s + tensor.data_wait_s + tensor.memcpy_s + tensor.collective_s
