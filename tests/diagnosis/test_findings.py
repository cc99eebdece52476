"""Findings on explanations made by hand: each is said when it is planted, and silence when nothing is wrong."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from scalescope.diagnosis.findings import FINDINGS, find
from scalescope.diagnosis.findings.case import Case
from scalescope.diagnosis.replay import Replay
from scalescope.diagnosis.traces import JobTraces
from scalescope.intervals import NOTHING
from scalescope.records.explanation import (
    Change,
    Clock,
    Epoch,
    Explanation,
    Finding,
    HorovodAccount,
    Period,
    RankAccount,
    RankTrace,
    StepAccount,
    TraceFolder,
    Transfer,
)
from scalescope.records.run import Point
from scalescope.records.timeline import Breakdown
from scalescope.traces.lateness import Lateness
from scalescope.traces.trace import Collectives, Parts, Trace

MIB = 1024 * 1024


def parts(step: float, **known: float) -> Breakdown:
    """A step of which some parts are known; the rest is other."""
    given = {f"{name}_s": known.get(name) for name in ("compute", "exposed", "hidden", "input", "optimizer", "waiting")}
    own = [value for name, value in given.items() if value is not None and name not in ("hidden_s", "waiting_s")]
    return Breakdown(step_s=step, other_s=step - sum(own), **given)


def job(per_rank: list[Breakdown], *, late: tuple[float, ...] = (), **changes: object) -> Explanation:
    """Ranks that differ as given; the slowest step counts."""
    made = Explanation(
        kind="profiler traces",
        what="train.py",
        files=("rank0.json",),
        ranks=tuple(range(len(per_rank))),
        world_size=len(per_rank),
        engine="ddp",
        backend="gloo",
        device="cpu",
        steps_from="marks",
        warmup_steps=0,
        step_s=max(each.step_s for each in per_rank),
        accounting=per_rank[0],
        per_rank=tuple(
            RankAccount(rank=at, steps=20, parts=each, late_s=late[at] if late else None)
            for at, each in enumerate(per_rank)
        ),
        shown_index=3,
    )
    return msgspec.structs.replace(made, **changes)


def trace() -> Trace:
    empty = np.zeros(0)
    return Trace(
        path=Path("rank0.json"),
        rank=0,
        world_size=2,
        backend="gloo",
        device="cpu",
        epoch_s=0.0,
        steps_from="marks",
        starts_s=np.arange(20.0),
        ends_s=np.arange(20.0) + 1,
        parts=Parts(empty, None, None, None, None, None, empty),
        collectives=Collectives(np.array([], dtype=object), np.zeros(0, dtype=np.int64), empty, empty),
        exchange=NOTHING,
    )


def findings(
    explanation: Explanation,
    *,
    replay: Replay | None = None,
    record: TraceFolder | None = None,
    clocks: tuple[Clock, ...] = (),
    compared: Lateness | None = None,
) -> dict[str, Finding]:
    traces = JobTraces("profiler traces", (trace(),), clocks, record=record, compared=compared)
    made = find(Case(explanation, traces, replay))
    assert [each.gain or 0 for each in made] == sorted((each.gain or 0 for each in made), reverse=True)
    return {each.id: each for each in made}


WAITS = parts(0.1, compute=0.06, exposed=0.04, hidden=0.0)
HEALTHY = parts(0.1, compute=0.09, exposed=0.004, hidden=0.02, input=0.001, optimizer=0.004)


def test_there_is_silence_when_nothing_is_wrong() -> None:
    assert findings(job([HEALTHY, HEALTHY], late=(0.0002, 0.0))) == {}


def test_a_late_rank_is_named_and_its_gain_is_the_wait_for_it() -> None:
    waiting = parts(0.1, compute=0.06, exposed=0.035, hidden=0.0)
    found = findings(job([waiting, HEALTHY], late=(0.0, 0.02), straggler=1))["straggler"]
    assert "Rank 1 comes 20 ms late" in found.sentence
    assert found.gain == pytest.approx(0.1 / 0.08 - 1)
    more = findings(job([waiting, HEALTHY], late=(0.0, 0.05), straggler=1))["straggler"]
    assert more.gain == pytest.approx(0.1 / (0.1 - 0.031) - 1), "it is busy for 31 ms longer, and no more can be gained"
    assert found.evidence["its compute against the others'"] == "90 ms against 60 ms"


def test_a_rank_that_is_late_for_no_work_of_its_own_costs_all_of_that() -> None:
    """It sleeps for 20 ms: the other rank has no such time, and the mean of both has half of it."""
    waits = parts(0.05, compute=0.02, exposed=0.025, waiting=0.02, hidden=0.0)
    sleeps = parts(0.05, compute=0.02, exposed=0.005, waiting=0.0, hidden=0.0)
    both = parts(0.05, compute=0.02, exposed=0.015, waiting=0.01, hidden=0.0)
    found = findings(job([waits, sleeps], late=(0.0, 0.02), straggler=1, accounting=both))["straggler"]
    assert found.parts == ("waiting", "other")
    assert saved_s(found, 0.05) == pytest.approx(0.02)


def test_what_a_late_rank_does_more_than_others_is_said_where_it_is_to_be_changed() -> None:
    waiting = parts(0.1, compute=0.06, exposed=0.035, hidden=0.0)
    late = findings(job([waiting, HEALTHY], late=(0.0, 0.02), straggler=1))["straggler"]
    assert late.change.startswith("Rank 1 computes 90 ms a step, 30 ms more than the others. Look at what rank 1 does")
    sleeps = parts(0.1, compute=0.06, exposed=0.004, hidden=0.0)
    asleep = findings(job([waiting, sleeps], late=(0.0, 0.02), straggler=1))["straggler"]
    assert asleep.change.startswith("Rank 1 is busy with something else for 36 ms a step, 31 ms more than the others. ")
    waits = parts(0.1, compute=0.05, exposed=0.05, waiting=0.04, hidden=0.0)
    works = parts(0.1, compute=0.08, exposed=0.02, waiting=0.01, hidden=0.0)
    uneven = findings(job([waits, works], late=(0.0, 0.012), accounting=waits))["uneven_ranks"]
    assert uneven.change.startswith("Rank 1 computes 80 ms a step, 30 ms more than the others. Give ranks cores")


def test_waiting_for_a_late_rank_is_no_exposed_communication() -> None:
    waiting = parts(0.1, compute=0.06, exposed=0.035, hidden=0.0)
    assert "exposed_communication" not in findings(job([waiting, HEALTHY], late=(0.0, 0.03), straggler=1))
    nothing = parts(0.1, compute=0.1, exposed=0.0, hidden=0.0)
    assert "exposed_communication" not in findings(job([nothing, waiting])), (
        "the rank that never waits tells what messages cost"
    )


def allreduces(mib: int, wait_s: float) -> Transfer:
    """One a step, short but for the wait."""
    rates = {"algorithm_bytes_per_s": 1e9, "bus_bytes_per_s": 1e9}
    return Transfer(operation="allreduce", bytes=mib * MIB, ranks=2, count=20, seconds=0.001, wait_s=wait_s, **rates)


def test_ranks_that_wait_for_each_other_are_given_with_what_they_wait() -> None:
    waits = parts(0.1, compute=0.06, exposed=0.04, waiting=0.035, hidden=0.0)
    sent = (allreduces(1, 0.015), allreduces(2, 0.010))
    found = findings(job([waits, waits], late=(0.012, 0.013), transfers=sent))
    assert list(found) == ["uneven_ranks"]
    assert found["uneven_ranks"].gain == pytest.approx(0.1 / 0.065 - 1), "what ranks wait and do nothing else"
    assert found["uneven_ranks"].parts == ("waiting",)
    assert found["uneven_ranks"].evidence["wait for the last rank, by size"] == "1 MiB: 15 ms, 2 MiB: 10 ms"
    assert found["uneven_ranks"].evidence["held up by, by rank"] == "0: 12 ms, 1: 13 ms"
    assert found["uneven_ranks"].sentence == "Ranks wait 35 ms a step for each other.", "nothing tells who was the last"
    hidden = parts(0.1, compute=0.096, exposed=0.004, waiting=0.0, hidden=0.03)
    assert findings(job([hidden, hidden], late=(0.012, 0.013), transfers=sent)) == {}, "under compute it costs nothing"
    assert "uneven_ranks" not in findings(job([WAITS, WAITS], transfers=sent)), "nothing tells waiting from transfer"


@pytest.mark.parametrize(
    ("last", "for_whom"),
    [((0, 1, 0, 1, 1), ", now for one and now for another."), ((1, 1, 1, 1, 0), ", mostly for rank 1."), ((), ".")],
)
def test_uneven_ranks_are_told_by_how_often_each_was_the_last(last: tuple[int, ...], for_whom: str) -> None:
    """Medians of their lateness may show one of them only."""
    nothing = np.zeros(0)
    held_up = np.array([[0.012 * (rank == each) for rank in (0, 1)] for each in last]).reshape(-1, 2)
    compared = Lateness(
        ranks=(0, 1),
        operation=np.array([], dtype=object),
        bytes=np.zeros(0, dtype=np.int64),
        late_s=nothing.reshape(0, 2),
        transfer_s=nothing,
        wait_s=nothing,
        waiting_s=(nothing, nothing),
        held_up_s=held_up,
        step_s=0.1,
        own_s=(0.06, 0.06),
        at=np.zeros(0, dtype=np.int64),
        mean_wait_s=nothing,
    )
    waits = parts(0.1, compute=0.06, exposed=0.04, waiting=0.035, hidden=0.0)
    found = findings(job([waits, waits], late=(0.0, 0.012)), compared=compared)["uneven_ranks"]
    assert found.sentence == f"Ranks wait 35 ms a step for each other{for_whom}"
    assert found.change.startswith("Look at rank 1 first. ") == ("mostly" in for_whom)
    told = {f"last, of {len(last)} steps": f"0: {last.count(0)}, 1: {last.count(1)}"} if last else {}
    assert {name: value for name, value in found.evidence.items() if name.startswith("last")} == told


def test_of_steps_whose_waits_differ_the_typical_one_counts() -> None:
    waits = parts(0.1, compute=0.06, exposed=0.04, waiting=0.02, hidden=0.0)
    few = [0.0] * 17 + [0.13] * 3
    steps = tuple(
        StepAccount(rank=rank, index=at, start_s=0.1 * at, parts=msgspec.structs.replace(waits, waiting_s=seconds))
        for rank in (0, 1)
        for at, seconds in enumerate(few)
    )
    assert "uneven_ranks" not in findings(job([waits, waits], steps=steps)), "three slow steps are no unevenness"


def test_the_same_seconds_are_claimed_once_and_the_cause_is_named() -> None:
    """One rank is 20 ms late on its input, and messages take 5 ms."""
    waits = parts(0.1, compute=0.07, exposed=0.025, waiting=0.02, hidden=0.0, input=0.0)
    late = parts(0.1, compute=0.07, exposed=0.005, waiting=0.0, hidden=0.0, input=0.02)
    found = findings(job([waits, late], late=(0.0, 0.02), straggler=1))
    assert list(found) == ["straggler"]
    assert "because it waits longer for its batch" in found["straggler"].sentence
    assert "num_workers" in found["straggler"].change
    assert found["straggler"].gain == pytest.approx(0.1 / 0.08 - 1)
    slow = parts(0.1, compute=0.05, exposed=0.025, waiting=0.02, hidden=0.0, input=0.02)
    slower = parts(0.1, compute=0.05, exposed=0.005, waiting=0.0, hidden=0.0, input=0.04)
    both = findings(job([slow, slower], late=(0.0, 0.02), straggler=1))
    assert [saved_s(each) for each in both.values()] == pytest.approx([0.02, 0.02]), "of one rank, and of both"
    sent = msgspec.structs.replace(allreduces(1, 0.0), operation="broadcast", count=20, seconds=0.03)
    messages = findings(job([WAITS], transfers=(sent,)))
    assert list(messages) == ["buffer_broadcasts", "exposed_communication"]
    assert sum(saved_s(each) for each in messages.values()) == pytest.approx(0.04), "no more than 40 ms are exposed"
    assert messages["exposed_communication"].evidence["counted there"] == "buffer_broadcasts"


def saved_s(finding: Finding, step_s: float = 0.1) -> float:
    return step_s * (1 - 1 / (1 + (finding.gain or 0.0)))


def test_halves_of_times_are_called_guesses() -> None:
    idle = findings(job([parts(0.1, compute=0.05, exposed=0.0, hidden=0.0)], device="cuda"))["idle_device"]
    exposed = findings(job([WAITS, WAITS]))["exposed_communication"]
    assert {idle.gain_from, exposed.gain_from} == {"guess"}


def test_a_slow_loader_is_found() -> None:
    found = findings(job([parts(0.1, compute=0.05, exposed=0.0, input=0.045), HEALTHY]))["input_bound"]
    assert found.gain == pytest.approx(0.1 / 0.055 - 1)
    assert "num_workers=4" in found.change
    assert "pin_memory" not in found.change, "there is no GPU to copy to"
    slow = job([parts(0.1, compute=0.05, exposed=0.0, input=0.045), HEALTHY])
    full = findings(slow, record=record(threads=1, cores=2))["input_bound"].change
    assert "num_workers=1" in full
    assert "take cores from the ranks" in full
    roomy = findings(slow, record=record(threads=1, cores=8))["input_bound"].change
    assert "num_workers=3" in roomy
    assert "take cores" not in roomy


def test_many_small_messages_and_one_large_are_told_by_replay() -> None:
    ready = np.linspace(0.01, 0.06, 50)
    slow = Replay(
        step_s=0.2,
        ready_s=ready,
        bytes=np.full(50, 1e4),
        sizes=np.array([1e4, 1e6]),
        seconds=np.array([0.003, 0.004]),
    )
    sending = parts(0.2, compute=0.06, exposed=0.13, hidden=0.0)
    found = findings(job([sending], bucket_bytes=(10_000,) * 50), replay=slow)["small_messages"]
    assert found.gain_from == "replay"
    assert found.gain is not None
    assert found.gain > 0.9
    large = Replay(
        step_s=0.2,
        ready_s=np.array([0.1]),
        bytes=np.array([40.0 * MIB]),
        sizes=np.array([MIB, 40.0 * MIB]),
        seconds=np.array([0.0025, 0.1]),
    )
    one = job([parts(0.2, compute=0.1, exposed=0.1, hidden=0.0)], bucket_bytes=(40 * MIB,))
    assert "large_bucket" not in findings(one, replay=large), "on one host's cores nothing is gained by hiding it"
    said = findings(msgspec.structs.replace(one, device="cuda"), replay=large)["large_bucket"]
    assert said.change.startswith("DistributedDataParallel(..., bucket_cap_mb=")
    assert said.gain is not None
    assert 0.2 < said.gain < 1.0


def test_exposed_communication_is_found_with_and_without_a_replay() -> None:
    exposed = parts(0.1, compute=0.06, exposed=0.04, hidden=0.0)
    assert findings(job([exposed, exposed]))["exposed_communication"].gain == pytest.approx(0.1 / 0.08 - 1)


def test_broadcasts_of_buffers_are_found_and_their_price_is_named() -> None:
    sent = Transfer(
        operation="broadcast",
        bytes=2000,
        ranks=2,
        count=40,
        seconds=0.004,
        algorithm_bytes_per_s=5e5,
        bus_bytes_per_s=5e5,
    )
    waits = parts(0.1, compute=0.09, exposed=0.009, hidden=0.02)
    found = findings(job([waits], transfers=(sent,)))["buffer_broadcasts"]
    assert found.gain == pytest.approx(0.1 / 0.092 - 1)
    assert "changes evaluation" in found.change


def horovod(**changes: object) -> HorovodAccount:
    made = HorovodAccount(
        negotiation_s=0.002,
        waiting_s=None,
        protocol_s=None,
        queue_s=0.0,
        data_wait_s=0.0,
        memcpy_in_s=0.0005,
        memcpy_out_s=0.0005,
        collectives_s={"MPI_ALLREDUCE": 0.004},
        responses=2.0,
        tensors_per_response=6.0,
        bytes_per_response=3e6,
        cycles=90.0,
        idle_cycles=88.0,
        cached=True,
        first_negotiation_s=0.01,
    )
    return msgspec.structs.replace(made, **changes)


def test_horovod_that_fuses_nothing_is_told_with_half_of_what_its_messages_cost() -> None:
    def unfused(exposed: float = 0.05, tensors: float = 2.0) -> dict[str, Finding]:
        many = horovod(responses=20.0, tensors_per_response=tensors, collectives_s={"A": 0.04, "B": 0.02})
        return findings(job([parts(0.1, exposed=exposed)], engine="horovod", horovod=many, bucket_bytes=(10_000,) * 20))

    found = unfused()["small_messages"]
    assert found.gain == pytest.approx(0.1 / (0.1 - 18 * 0.003 / 2) - 1), "of 20 messages of 3 ms two remain"
    assert found.gain_from == "guess"
    assert unfused(exposed=0.02)["small_messages"].gain == pytest.approx(0.1 / 0.08 - 1), "what is hidden costs nothing"
    assert "small_messages" not in unfused(tensors=3.0)


def test_a_long_cycle_is_found_and_a_usual_one_is_not() -> None:
    slow = parts(0.12, exposed=0.06)
    found = findings(job([slow], engine="horovod", horovod=horovod(cycles=2.0)))
    assert "HOROVOD_CYCLE_TIME=1" in found["long_cycle"].change
    assert found["long_cycle"].gain == pytest.approx(0.12 / (0.12 - 0.053) - 1)
    assert "negotiation" not in found
    assert "long_cycle" not in findings(job([slow], engine="horovod", horovod=horovod()))


def test_negotiation_that_nothing_hides_says_how_to_find_the_late_rank() -> None:
    found = findings(job([parts(0.1, exposed=0.05)], engine="horovod", horovod=horovod(negotiation_s=0.06)))
    assert "scalescope explain --np N" in found["negotiation"].change
    assert found["negotiation"].gain == pytest.approx(0.1 / (0.1 - 0.043) - 1), "two cycles are nobody's lateness"
    slower = job([parts(0.1, exposed=0.05)], engine="horovod", horovod=horovod(negotiation_s=0.12), traced_step_s=0.2)
    assert findings(slower)["negotiation"].sentence.startswith("Ranks negotiate 60 ms a step; 45.5 ms of that"), (
        "both without the tracer, which makes steps twice as long"
    )


def test_waiting_for_whichever_rank_is_last_is_no_cost_of_messages_or_of_the_cache() -> None:
    uncached = horovod(negotiation_s=0.06, cached=False, waiting_s=0.045)
    waits = parts(0.1, exposed=0.05, waiting=0.045)
    found = findings(job([waits], engine="horovod", horovod=uncached, skew_s=(0.045,) * 9))
    assert list(found) == ["uneven_ranks"]
    assert found["uneven_ranks"].gain == pytest.approx(0.1 / (0.1 - 0.045) - 1)


def test_what_a_run_pays_once_is_told_without_a_gain() -> None:
    epochs = tuple(Epoch(number=at + 1, steps=10, seconds=30.0 if not at else 1.0) for at in range(5))
    found = find(Case(job([WAITS], epochs=epochs), JobTraces("profiler traces", (trace(),)), None))
    assert [each.id for each in found] == ["exposed_communication", "first_epoch"]
    assert found[1].gain is None
    assert "rain longer" not in found[1].change


def test_slow_steps_that_come_back_are_found() -> None:
    found = findings(job([HEALTHY], periods=(Period(every=10, excess_s=0.1, count=5),)))["slow_periods"]
    assert found.gain == pytest.approx(0.1)


def test_an_idle_gpu_is_found() -> None:
    idle = parts(0.1, compute=0.05, exposed=0.0, hidden=0.0)
    assert "50 %" in findings(job([idle], device="cuda"))["idle_device"].sentence
    assert "idle_device" not in findings(job([idle]))


def record(threads: int, cores: int) -> TraceFolder:
    return TraceFolder(
        what="train.py",
        point=Point(engine="ddp", np=2, batch=None, threads_per_rank=threads),
        engine="ddp",
        backend="gloo",
        np=2,
        cores=cores,
        ranks=(RankTrace(rank=0, host="a"), RankTrace(rank=1, host="a")),
        steps=20,
        untraced_step_s=None,
    )


def test_more_threads_than_cores_are_found() -> None:
    found = findings(job([HEALTHY, HEALTHY]), record=record(threads=4, cores=4))["oversubscribed_cores"]
    assert "OMP_NUM_THREADS=2" in found.change
    assert findings(job([HEALTHY, HEALTHY]), record=record(threads=2, cores=4)) == {}


def test_steps_that_only_the_tracer_makes_slow_are_its_cost() -> None:
    slow = job([HEALTHY], overhead=0.01, changes=(Change(step=10, before_s=0.053, after_s=0.154),))
    around = record(threads=1, cores=2)
    assert "slower_since" in findings(slow, record=around), "nothing is known of untraced steps"
    quick_again = msgspec.structs.replace(around, untraced_after_s=0.052)
    assert findings(slow, record=quick_again) == {}
    stays_slow = msgspec.structs.replace(around, untraced_after_s=0.14)
    assert "slower_since" in findings(slow, record=stays_slow)


def test_every_finding_has_a_name_of_its_own() -> None:
    assert len({look.__name__ for look in FINDINGS}) == len(FINDINGS)
