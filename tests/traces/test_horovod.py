import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalescope.traces.horovod.accounting import Block, waiting
from scalescope.traces.horovod.columns import GROUPS
from scalescope.traces.horovod.reading import read
from scalescope.traces.trace import breakdowns
from traces.horovod_reference import SAMPLES, covered, events_of, is_collective, reference, steady_account, text_of

TRAININGS = {"mpi_cnn": (20, "mpi"), "gloo_mlp_mark": (16, "gloo")}


def sample(name: str) -> Path:
    return next(SAMPLES.glob(f"{name}.json*"))


@pytest.mark.parametrize("name", TRAININGS)
def test_steps_are_the_recurrences_of_the_gradients(name: str) -> None:
    gradients, backend = TRAININGS[name]
    trace, plain = read(sample(name)), reference(events_of(name))
    turns = [min(times) for times in zip(*plain.submissions.values(), strict=True)]
    assert len(plain.submissions) == gradients
    assert trace.steps_from == "gradients"
    assert np.round(trace.starts_s * 1e6).tolist() == turns[:-1]
    assert np.round(trace.ends_s * 1e6).tolist() == turns[1:]
    assert (trace.backend, trace.world_size, trace.device, trace.rank) == (backend, 2, "cpu", 0)
    assert trace.loss.events == trace.loss.bytes == 0
    assert trace.loss.reason == ""


@pytest.mark.parametrize("name", TRAININGS)
def test_exposed_is_what_follows_the_last_submission(name: str) -> None:
    trace, plain = read(sample(name)), reference(events_of(name))
    exchange = [
        span
        for activity, spans in plain.activities.items()
        for span in spans
        if activity.startswith("NEGOTIATE_") or activity in ("ALLREDUCE", "BROADCAST")
    ]
    assert trace.parts.exposed is not None
    assert trace.possibly_hidden is not None
    for at, (start, end) in enumerate(zip(trace.starts_s * 1e6, trace.ends_s * 1e6, strict=True)):
        last = max(times[at] for times in plain.submissions.values())
        assert trace.parts.exposed[at] * 1e6 == pytest.approx(covered(exchange, last, end), abs=0.01)
        assert trace.possibly_hidden[at] * 1e6 == pytest.approx(covered(exchange, start, last), abs=0.01)
    whole = trace.exchange.ends.sum() - trace.exchange.starts.sum()
    assert whole * 1e6 == pytest.approx(covered(exchange, -1, 1e12), abs=0.1)


@pytest.mark.parametrize("name", [*TRAININGS, "gloo_ops", "mpi_ops"])
def test_the_parts_add_up_and_what_is_unknown_is_absent(name: str) -> None:
    parts = breakdowns(read(sample(name)).parts)
    assert parts
    for part in parts:
        assert part.compute_s is part.input_s is part.optimizer_s is part.hidden_s is None
        assert part.exposed_s is not None
        assert part.exposed_s >= 0
        assert part.exposed_s + part.other_s == pytest.approx(part.step_s, rel=1e-9)


@pytest.mark.parametrize("warmup", [1, 4])
@pytest.mark.parametrize("name", TRAININGS)
def test_figures_of_the_background_thread_are_unions_per_steady_step(name: str, warmup: int) -> None:
    trace, plain = read(sample(name)), reference(events_of(name))
    account = steady_account(trace, warmup)
    collective = next(
        activity for activity in plain.activities if activity.endswith("_ALLREDUCE") and is_collective(activity)
    )
    expected = {
        "NEGOTIATE_ALLREDUCE": account.negotiation_s,
        "MEMCPY_IN_FUSION_BUFFER": account.memcpy_in_s,
        "MEMCPY_OUT_FUSION_BUFFER": account.memcpy_out_s,
        collective: account.collectives_s[collective],
    }
    windows = list(zip(trace.starts_s * 1e6, trace.ends_s * 1e6, strict=True))
    steady = windows[warmup:]
    for activity, value in expected.items():
        mean = np.mean([covered(plain.activities[activity], *one) for one in steady])
        assert 1e6 * value == pytest.approx(mean)
    sent = sum(start <= moment < end for moment in plain.messages for start, end in steady)
    assert account.responses == pytest.approx(sent / len(steady))
    assert account.responses * account.tensors_per_response == pytest.approx(TRAININGS[name][0])
    assert account.last_rank == dict(plain.last_ranks)
    assert account.cached
    assert account.waiting_s is account.protocol_s is None
    first = covered(plain.activities["NEGOTIATE_ALLREDUCE"], *windows[0])
    assert account.first_negotiation_s * 1e6 == pytest.approx(first)
    if plain.cycles:
        cycles = [[moment for moment in plain.cycles if start <= moment < end] for start, end in steady]
        assert account.cycles == pytest.approx(sum(map(len, cycles)) / len(steady))
        following = dict(zip(plain.cycles, [*plain.cycles[1:], 1 << 60], strict=True))
        begins = [moment for moment, _ in plain.activities["ALLREDUCE"]]
        idle = sum(not any(cycle <= begin < following[cycle] for begin in begins) for step in cycles for cycle in step)
        assert account.idle_cycles == pytest.approx(idle / len(steady))
    else:
        assert account.cycles is account.idle_cycles is None


@pytest.mark.parametrize("name", [*TRAININGS, "gloo_ops", "mpi_ops"])
def test_a_message_is_one_collective_whatever_was_fused(name: str) -> None:
    trace, plain = read(sample(name)), reference(events_of(name))
    without = {"gloo_ops": 10}.get(name, 0)  # Gloo's Adasum names no collective
    assert len(trace.collectives.bytes) == len(plain.messages) + without
    begins = set(np.round(trace.collectives.start_s * 1e6).astype(int).tolist())
    assert set(plain.messages) <= begins
    assert (np.diff(trace.collectives.end_s) >= 0).all()


def test_the_sizes_of_messages_come_from_shapes() -> None:
    trace = read(sample("mpi_cnn"))
    sizes = {"float32": 4}
    per_step = sum(
        sizes[event["args"]["dtype"]] * int(np.prod(json.loads(event["args"]["shape"]) or [1]))
        for event in events_of("mpi_cnn")
        if event["ph"] == "E" and "args" in event
    )
    reductions = trace.collectives.operation == "allreduce"
    assert trace.collectives.bytes[reductions].sum() == per_step
    assert sum(trace.bucket_bytes) * 60 == per_step
    assert set(trace.collectives.operation) == {"allreduce", "broadcast"}
    assert (trace.collectives.bytes[~reductions] == -1).all()


def test_tensors_are_named_and_the_dearest_come_first() -> None:
    account = steady_account(read(sample("mpi_cnn")))
    assert len(account.tensors) == 50
    gradients = [tensor for tensor in account.tensors if tensor.operation == "allreduce"]
    assert {tensor.count for tensor in gradients} == {60}
    assert "allreduce.10.weight" in {tensor.name for tensor in gradients}
    assert all(tensor.collective_s > 0 and tensor.bytes for tensor in gradients)


def test_the_clock_starts_when_the_file_says() -> None:
    assert read(sample("gloo_ops")).epoch_s == pytest.approx(1794716198.128742)


def test_gloo_is_recognised_although_it_labels_alltoall_as_mpi() -> None:
    trace = read(sample("gloo_ops"))
    assert trace.backend == "gloo"
    assert {"alltoall", "allgather", "reducescatter", "broadcast", "adasum"} <= set(trace.collectives.operation)


def test_a_timeline_without_recurrences_has_no_steps(tmp_path: Path) -> None:
    path = tmp_path / "once.json"
    kept = [event for event in events_of("mpi_cnn") if event["ph"] == "M" or event["ts"] < 7_400_000]
    path.write_text(json.dumps(kept))
    trace = read(path)
    assert trace.steps_from == "none"
    assert len(trace.starts_s) == 0
    assert "no gradient tensors recur" in trace.notes[0]
    assert len(trace.collectives.bytes) > 0


def test_a_window_shows_messages_instead_of_tensors() -> None:
    path = sample("mpi_cnn")
    trace = read(path)
    spans = trace.spans(trace.starts_s[30], trace.ends_s[30])
    inside = [span for span in spans if span.start_s < trace.ends_s[30]]
    assert {span.activity for span in inside} == {"negotiation", "communication", "copy"}
    messages = [span for span in inside if span.activity == "communication"]
    assert [span.name for span in messages] == [f"MPI_ALLREDUCE of {count} tensors" for count in (6, 8, 6)]
    assert sum(span.bytes for span in messages) == sum(trace.bucket_bytes)
    assert all(span.rank == 0 and span.end_s >= span.start_s for span in spans)


def test_gzip_and_plain_timelines_read_the_same(tmp_path: Path) -> None:
    plain = tmp_path / "plain.json"
    plain.write_bytes(text_of("mpi_cnn"))
    one, other = read(plain), read(sample("mpi_cnn"))
    assert sample("mpi_cnn").suffix == ".gz"
    assert steady_account(one) == steady_account(other)
    assert one.starts_s.tolist() == other.starts_s.tolist()


def test_without_the_cache_the_late_rank_is_named_and_the_wait_is_told_apart() -> None:
    """Rank 1 of that job slept for 20 ms in every step, with HOROVOD_CACHE_CAPACITY=0."""
    account = steady_account(read(sample("gloo_nocache")))
    assert account.last_rank == dict(reference(events_of("gloo_nocache")).last_ranks) == {1: 660}
    assert not account.cached
    assert account.waiting_s is not None
    assert account.protocol_s is not None
    assert account.waiting_s > 0.02
    assert account.waiting_s + account.protocol_s == pytest.approx(account.negotiation_s)


def test_the_timeline_of_a_killed_job_is_whole() -> None:
    trace = read(sample("gloo_killed"))
    assert trace.loss.reason == ""
    assert len(trace.starts_s) == 35


@pytest.mark.parametrize(("name", "late_s"), [("gloo_late_cached", 0.019), ("gloo_late_uncached", 0.025)])
def test_waiting_for_the_late_rank_is_told_from_transfer_with_the_cache_and_without(name: str, late_s: float) -> None:
    """Rank 1 slept 20 ms in every step."""
    parts = read(sample(name)).parts
    assert parts.waiting is not None
    assert parts.exposed is not None
    assert np.median(parts.waiting[1:]) == pytest.approx(late_s, rel=0.15)
    assert np.all(parts.waiting <= parts.exposed)


def test_a_long_cycle_is_no_wait_for_a_rank() -> None:
    one = Block(
        np.zeros(1), np.zeros((1, GROUPS)), {}, {"negotiations": np.ones(1), "ticked_negotiations": np.zeros(1)}
    )
    cycles = {"cycles": np.array([2.0])}
    slow = replace(one, counts={**one.counts, **cycles})
    unmarked = replace(one, counts={**one.counts, "cycles": np.zeros(1)})
    told = np.array([0.12]), np.array([0.06]), np.zeros(1)
    assert waiting([slow], *told) == pytest.approx([0.0]), "60 ms between two looks"
    assert waiting([unmarked], *told) == pytest.approx([0.058])
