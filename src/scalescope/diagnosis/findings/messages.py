"""Messages: too many, too large, too slow, or needless."""

import numpy as np

from scalescope.diagnosis.findings.case import NOTEWORTHY, Case, sent_s
from scalescope.diagnosis.replay import best_bucket, gain
from scalescope.engines import engine_named
from scalescope.engines.base import MIB
from scalescope.records.explanation import Finding
from scalescope.text import plural
from scalescope.units import format_bytes, format_seconds, format_share

_USUAL_BUCKETS = (25 * MIB, 10 * MIB, 4 * MIB)
# All above what counts as small: a trace taken with any of them is never told to go back.
_SMALLER_BUCKETS = (10 * MIB, 4 * MIB, 2 * MIB)
_MANY = 8
_SMALL_BYTES = MIB
_LARGE_SHARE = 0.6
_EXPOSED_SHARE = 0.1
_USUAL_FUSION = 128 * MIB
_AVOIDABLE = 0.5  # Of what messages cost that fuse nothing: a guess, and called one


def small_messages(case: Case) -> Finding | None:
    """Gradients travel in many small messages, and each pays a fixed cost."""
    explanation = case.explanation
    sizes = explanation.bucket_bytes
    if len(sizes) < _MANY or float(np.median(sizes)) > _SMALL_BYTES:
        return None
    if explanation.horovod is not None:
        return _unfused(case)
    if case.replay is None:
        return None
    cap, step_s = best_bucket(case.replay, _USUAL_BUCKETS)
    if gain(case.replay.step_s, step_s) < NOTEWORTHY:
        return None
    return Finding(
        id="small_messages",
        sentence=f"Gradients travel in {plural(len(sizes), 'message')} a step "
        f"of about {format_bytes(float(np.median(sizes)))}: each pays a fixed cost.",
        evidence=_sizes(case),
        change=engine_named(explanation.engine).message_size.format(mib=cap / MIB),
        gain=gain(case.replay.step_s, step_s),
        gain_from="replay",
        parts=(case.part("transfer"),),
    )


def _unfused(case: Case) -> Finding | None:
    account, sizes = case.explanation.horovod, case.explanation.bucket_bytes
    accounting = case.explanation.accounting
    if account is None or accounting is None or account.tensors_per_response > 2:
        return None
    per_message = case.factor * sum(account.collectives_s.values()) / max(account.responses, 1.0)
    saved = min(per_message * (account.responses - 2) * _AVOIDABLE, sent_s(accounting))
    if case.saving(saved) < NOTEWORTHY:
        return None
    return Finding(
        id="small_messages",
        sentence=f"Horovod sends {account.responses:.0f} messages a step of about "
        f"{format_bytes(float(np.median(sizes)))} and fuses almost none of them.",
        evidence={"tensors per message": f"{account.tensors_per_response:.1f}", **_sizes(case)},
        change=f"HOROVOD_FUSION_THRESHOLD={_USUAL_FUSION} (bytes, the default), and a HOROVOD_CYCLE_TIME of 1 or more",
        gain=case.saving(saved),
        gain_from="guess",
        parts=(case.part("transfer"),),
    )


def large_bucket(case: Case) -> Finding | None:
    """One message holds most of the gradients: it leaves when backward is nearly over, and nothing hides it."""
    sizes = case.explanation.bucket_bytes
    if case.replay is None or not sizes or max(sizes) < _LARGE_SHARE * sum(sizes) or case.shares_cores:
        return None
    cap, step_s = best_bucket(case.replay, _SMALLER_BUCKETS)
    if gain(case.replay.step_s, step_s) < NOTEWORTHY or cap >= max(sizes):
        return None
    return Finding(
        id="large_bucket",
        sentence=f"One message holds {format_share(max(sizes) / sum(sizes))} of the gradients "
        f"({format_bytes(max(sizes))}): it leaves late and little hides it.",
        evidence=_sizes(case),
        change=engine_named(case.explanation.engine).message_size.format(mib=cap / MIB),
        gain=gain(case.replay.step_s, step_s),
        gain_from="replay",
        parts=(case.part("transfer"),),
    )


def exposed_communication(case: Case) -> Finding | None:
    """Communication that no compute hides; waiting for a late rank is none of it."""
    ranks = {each.rank: each.parts for each in case.explanation.per_rank if each.parts.exposed_s is not None}
    if not ranks or not case.step_s:
        return None

    # The rank that comes last to every message waits for nobody: what it shows is the messages themselves.
    rank = min(ranks, key=lambda rank: sent_s(ranks[rank]))
    accounting = ranks[rank]
    exposed_s = min(sent_s(accounting), case.step_s if case.sending_s is None else case.sending_s)
    share = exposed_s / accounting.step_s
    if share < _EXPOSED_SHARE:
        return None
    total = exposed_s + (accounting.hidden_s or 0.0)
    hidden = (
        f"; {format_share(accounting.hidden_s / total)} of all communication is hidden" if accounting.hidden_s else ""
    )
    engine, by_operation = engine_named(case.explanation.engine), case.exposed_by_operation(rank)
    own_s = sum(seconds for name, seconds in by_operation.items() if name in engine.operations)
    of_others = bool(by_operation) and own_s < sum(by_operation.values()) / 2
    replay = None if of_others else case.replay
    won = case.saving(exposed_s / 2) if replay is None else gain(replay.step_s, replay.with_links(2.0))
    if won < NOTEWORTHY:
        return None
    many = (case.explanation.world_size or 2) > 1
    whole = case.explanation.accounting  # the answer's shares are of this mean over ranks
    is_own = whole is not None and format_share(sent_s(whole) / whole.step_s) != format_share(share)
    of_whom = f" of rank {rank}'s step" if is_own and len(ranks) > 1 else ""
    whose = ""
    if len(by_operation) > 1:
        most = max(by_operation, key=lambda name: by_operation[name])
        whose = f", {format_share(by_operation[most] / sum(by_operation.values()))} of it {most}"
    what = "Exposed communication takes" if accounting.transfer_s is None else "Transfers that no compute hides take"
    fewer = "" if of_others or not engine.fewer_exchanges else f"Fewer exchanges: {engine.fewer_exchanges}; or a"
    return Finding(
        id="exposed_communication",
        sentence=f"{what} {format_seconds(exposed_s)} of a step ({format_share(share)}{of_whom}{whose}){hidden}.",
        evidence={
            "exposed": format_seconds(exposed_s),
            **{f"exposed {name}": format_seconds(seconds) for name, seconds in by_operation.items()},
            "hidden": "unknown" if accounting.hidden_s is None else format_seconds(accounting.hidden_s),
            **(_sizes(case) if many else {}),
        },
        change=f"{fewer or 'A'} larger batch per process; or faster links. The gain is that of links twice as fast.",
        gain=won,
        gain_from="guess" if replay is None else "replay",
        parts=(case.part("transfer"),),
    )


def buffer_broadcasts(case: Case) -> Finding | None:
    """The engine sends buffers, such as BatchNorm's, from rank 0 before every forward."""
    explanation = case.explanation
    engine = engine_named(explanation.engine)
    if not engine.no_broadcasts or not case.step_s:
        return None
    steps = min(len(trace.starts_s) for trace in case.job.traces)
    sent = [transfer for transfer in explanation.transfers if transfer.operation == "broadcast"]
    count = sum(transfer.count for transfer in sent)
    if not steps or count < steps:
        return None
    seconds = case.factor * sum(transfer.count * transfer.seconds for transfer in sent) / steps
    if case.saving(seconds) < NOTEWORTHY:
        return None
    return Finding(
        id="buffer_broadcasts",
        sentence=f"{engine.title} broadcasts buffers before every forward: {format_seconds(seconds)} a step.",
        evidence={
            "broadcasts per step": f"{count / steps:.1f}",
            "seconds per step": format_seconds(seconds),
            "seen in": case.shown,
        },
        change=engine.no_broadcasts,
        gain=case.saving(seconds),
        gain_from="accounting",
        parts=(case.part("transfer"),),
    )


def _sizes(case: Case) -> dict[str, str]:
    sizes = case.explanation.bucket_bytes
    shown = ", ".join(format_bytes(size) for size in sizes[:6]) + (
        f" and {len(sizes) - 6} more" if len(sizes) > 6 else ""
    )
    return {"messages of a step": shown or "sizes unknown", "seen in": case.shown}
