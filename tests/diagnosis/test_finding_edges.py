"""Where findings begin and end: values just at and just beyond their thresholds, and the evidence they give."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from diagnosis.test_findings import HEALTHY, MIB, findings, horovod, job, parts, record, trace
from scalescope.diagnosis.findings.case import Case
from scalescope.diagnosis.replay import Replay
from scalescope.diagnosis.traces import JobTraces
from scalescope.records.explanation import (
    Change,
    Epoch,
    Finding,
    FirstSteps,
    Link,
    Network,
    Period,
    RankTrace,
    StepAccount,
    Transfer,
)
from scalescope.records.timeline import Breakdown


def epochs(first: float, later: float, count: int = 5, **first_more: float) -> tuple[Epoch, ...]:
    rest = tuple(Epoch(number=at + 2, steps=10, seconds=later, negotiation_share=0.1) for at in range(count - 1))
    return (Epoch(number=1, steps=10, seconds=first, **first_more), *rest)


def test_a_first_epoch_is_told_from_a_twentieth_of_the_run() -> None:
    found = findings(job([HEALTHY], epochs=epochs(30.0, 10.0, negotiation_share=0.4)))["first_epoch"]
    assert found.sentence == "The first epoch takes 20 s longer than later ones, 29 % of the run."
    assert found.evidence == {
        "first epoch": "30 s",
        "later epochs": "10 s",
        "seen in": "rank0.json",
        "negotiation": "40 % of the first epoch, 10 % of later ones",
    }
    assert "negotiation" not in findings(job([HEALTHY], epochs=epochs(30.0, 10.0)))["first_epoch"].evidence
    assert "first_epoch" in findings(job([HEALTHY], epochs=epochs(3.2, 2.0, 10)))
    assert findings(job([HEALTHY], epochs=epochs(2.5, 2.0, 10))) == {}


def steps(first: float, later: float, count: int) -> tuple[StepAccount, ...]:
    seconds = [first, *[later] * (count - 1)]
    return tuple(
        StepAccount(rank=0, index=at, start_s=0.0, parts=parts(each, compute=each)) for at, each in enumerate(seconds)
    )


def first_steps(first: float, excess: float, *, asked: bool = False, **told: float) -> dict[str, Finding]:
    explanation = job(
        [HEALTHY],
        steps=steps(first, 0.1, 21),
        warmup_steps=1,
        first_steps=FirstSteps(steps=1, excess_s=excess, parts_s=told),
    )
    folder = msgspec.structs.replace(record(1, 4), from_start=asked, before_s={"import": 2.0})
    return findings(explanation, record=folder)


def test_first_steps_are_told_with_what_they_are_made_of() -> None:
    found = first_steps(2.0, 1.8, compute=1.5, input=0.45, optimizer=-0.05)["first_epoch"]
    assert found.sentence == (
        "The first step costs 1.8 s more than later ones, 45 % of what was traced: 1.5 s compute, 450 ms input."
    )
    assert found.evidence["first step"] == "2 s"
    assert found.evidence["steady step"] == "100 ms"
    assert found.evidence["steps until steady"] == "1"
    assert found.evidence["optimizer"] == "-50 ms"
    assert found.evidence["seen in"] == "step 0 of rank0.json"
    assert found.evidence["before the first step"] == "import 2 s"


def test_first_steps_that_cost_little_are_told_only_when_they_were_asked_for() -> None:
    assert first_steps(0.2, 0.1) == {}
    assert "first_epoch" in first_steps(0.2, 0.1, asked=True)
    assert first_steps(0.15, 0.04, asked=True) == {}, "less than half a step"
    assert "first_epoch" in first_steps(0.15, 0.05, asked=True)
    assert first_steps(0.29, 1.0) == {}, "less than three times as long"
    assert "first_epoch" in first_steps(0.301, 1.0)
    assert first_steps(0.5, 0.12) == {}, "less than a twentieth of what was traced"


def test_slow_periods_are_told_above_three_percent() -> None:
    def found(excess_s: float) -> dict[str, Finding]:
        return findings(job([HEALTHY], periods=(Period(every=10, excess_s=excess_s, count=5),)))

    assert found(0.02) == {}
    told = found(0.04)["slow_periods"]
    assert told.gain == pytest.approx(0.04)
    assert told.sentence == "Every 10 steps one takes 40 ms longer."
    assert told.evidence == {"slow steps": "5", "seen in": "rank0.json"}


def test_of_changes_the_worst_slowing_is_told() -> None:
    made = (
        Change(step=5, before_s=0.1, after_s=0.05),
        Change(step=9, before_s=0.05, after_s=0.06),
        Change(step=15, before_s=0.06, after_s=0.09),
    )
    found = findings(job([HEALTHY], changes=made))["slower_since"]
    assert found.sentence == "From step 15 on steps take 90 ms instead of 60 ms."
    assert found.gain == pytest.approx(0.5)
    assert found.evidence == {"changes": "3", "seen in": "step 15 of rank0.json"}
    assert findings(job([HEALTHY], changes=made[:1])) == {}


def test_threads_are_counted_per_host() -> None:
    def found(threads: int, cores: int, hosts: str = "aa") -> dict[str, Finding]:
        ranks = tuple(RankTrace(rank=at, host=host) for at, host in enumerate(hosts))
        folder = msgspec.structs.replace(record(threads, cores), ranks=ranks, np=len(hosts))
        return findings(job([HEALTHY, HEALTHY]), record=folder)

    told = found(3, 4)["oversubscribed_cores"]
    assert told.sentence == "2 processes with 3 threads each share 4 cores of a host."
    assert told.evidence["threads per host"] == "6"
    assert told.change == "--threads-per-rank 2 (OMP_NUM_THREADS=2)"
    assert found(3, 4, "ab") == {}
    assert found(5, 4, "ab")["oversubscribed_cores"].change == "--threads-per-rank 4 (OMP_NUM_THREADS=4)"
    assert found(1, 2, "aaaa")["oversubscribed_cores"].change == "fewer processes per host"
    assert found(2, 2, "aa")["oversubscribed_cores"].change.startswith("--threads-per-rank 1 ")
    folder = record(9, 2)
    nobody_knows = msgspec.structs.replace(folder, cores=None)
    assert findings(job([HEALTHY]), record=nobody_knows) == {}
    as_it_is = msgspec.structs.replace(folder, point=msgspec.structs.replace(folder.point, threads_per_rank=None))
    assert findings(job([HEALTHY]), record=as_it_is) == {}
    assert findings(job([HEALTHY], device="cuda"), record=folder) == {}


def test_a_gpu_is_idle_from_a_fifth_of_the_step() -> None:
    def found(compute: float, **more: Any) -> dict[str, Finding]:
        return findings(job([parts(0.1, compute=compute, exposed=0.0, hidden=0.0)], device="cuda", **more))

    assert "idle_device" not in found(0.085)
    told = found(0.06)["idle_device"]
    assert told.gain == pytest.approx(0.1 / 0.08 - 1)
    assert told.evidence["compute on the GPU"] == "60 ms"
    assert told.evidence["neither compute nor communication"] == "40 ms"
    assert "torch.compile(model)" in told.change
    assert "graph breaks" in found(0.06, compiled=True)["idle_device"].change


def test_exposed_communication_is_told_from_a_tenth_of_a_step() -> None:
    def found(exposed: float, hidden: float = 0.0) -> dict[str, Finding]:
        each = parts(0.1, compute=0.1 - exposed, exposed=exposed, hidden=hidden)
        return findings(job([each, each]))

    assert found(0.009) == {}
    told = found(0.012, hidden=0.004)["exposed_communication"]
    assert told.sentence == "Exposed communication takes 12 ms of a step (12 %); 25 % of all communication is hidden."
    assert told.evidence["hidden"] == "4 ms"
    assert told.evidence["messages of a step"] == "sizes unknown"
    assert found(0.012)["exposed_communication"].sentence.endswith("12 ms of a step (12 %).")
    unknown = findings(job([parts(0.1, exposed=0.012)]))["exposed_communication"]
    assert unknown.evidence["hidden"] == "unknown"


def test_of_horovod_no_more_than_it_sends_is_exposed_communication() -> None:
    waits = parts(0.1, exposed=0.06)
    sends = horovod(collectives_s={"A": 0.015, "B": 0.01}, memcpy_in_s=0.003, memcpy_out_s=0.002)
    told = findings(job([waits], engine="horovod", horovod=sends))["exposed_communication"]
    assert told.evidence["exposed"] == "30 ms"
    assert told.gain == pytest.approx(0.1 / 0.085 - 1)
    assert "backward_passes_per_step=2" in told.change


def test_sizes_of_messages_are_listed_up_to_six() -> None:
    waits = parts(0.1, compute=0.06, exposed=0.04, hidden=0.0)
    seven = findings(job([waits, waits], bucket_bytes=(MIB,) * 7))["exposed_communication"].evidence
    assert seven["messages of a step"] == f"{', '.join(['1 MiB'] * 6)} and 1 more"
    six = findings(job([waits, waits], bucket_bytes=(MIB,) * 6))["exposed_communication"].evidence
    assert six == {**seven, "messages of a step": ", ".join(["1 MiB"] * 6)}
    assert six["seen in"] == "step 3 of rank0.json"


def small(count: int, size: int, per_message_s: float = 0.003) -> dict[str, Finding]:
    ready = np.linspace(0.01, 0.06, count)
    replay = Replay(
        step_s=0.2,
        ready_s=ready,
        bytes=np.full(count, float(size)),
        sizes=np.array([float(size), 1e9]),
        seconds=np.array([per_message_s, 0.01]),
    )
    sending = parts(0.2, compute=0.06, exposed=0.13, hidden=0.0)
    return findings(job([sending], bucket_bytes=(size,) * count), replay=replay)


def test_messages_are_many_from_eight_and_small_up_to_a_mebibyte() -> None:
    assert "small_messages" in small(50, MIB)
    assert "small_messages" not in small(50, MIB + 1)
    assert "small_messages" not in small(7, 10_000, 0.02)
    assert "small_messages" in small(8, 10_000, 0.02)
    without = findings(job([parts(0.2, compute=0.06, exposed=0.13, hidden=0.0)], bucket_bytes=(10_000,) * 50))
    assert "small_messages" not in without, "nothing to replay"


def test_buffers_are_told_where_every_step_sends_some() -> None:
    def found(count: int, seconds: float, engine: str = "ddp") -> dict[str, Finding]:
        sent = Transfer(
            operation="broadcast",
            bytes=2000,
            ranks=2,
            count=count,
            seconds=seconds,
            algorithm_bytes_per_s=5e5,
            bus_bytes_per_s=5e5,
        )
        waits = parts(0.1, compute=0.05, exposed=0.049, hidden=0.0)
        return findings(job([waits], transfers=(sent,), engine=engine))

    assert "buffer_broadcasts" not in found(19, 0.01)
    told = found(20, 0.01)["buffer_broadcasts"]
    assert told.evidence["broadcasts per step"] == "1.0"
    assert told.evidence["seconds per step"] == "10 ms"
    assert "buffer_broadcasts" not in found(20, 0.002), "two percent are not worth it"
    assert "buffer_broadcasts" not in found(20, 0.01, "horovod")


def case(explanation_changes: dict[str, Any], names: tuple[str, ...] = ("rank0.json",)) -> Case:
    traces = tuple(dataclasses.replace(trace(), path=Path(name), rank=at) for at, name in enumerate(names))
    return Case(job([HEALTHY], **explanation_changes), JobTraces("profiler traces", traces), None)


def test_a_saving_leaves_a_twentieth_of_the_step_at_least() -> None:
    made = case({})
    assert made.saving(0.05) == pytest.approx(1.0)
    assert made.saving(0.0) == 0.0
    assert made.saving(0.2) == pytest.approx(19.0)
    assert case({"step_s": None}).saving(0.1) == 0.0


def test_evidence_names_three_files_and_counts_the_others() -> None:
    assert case({}, ("a", "b", "c")).where == "a, b, c"
    assert case({}, ("a", "b", "b", "c", "d", "e")).where == "a, b, c and 2 more"
    assert case({"shown_index": None}).shown == "rank0.json"
    assert case({"shown_index": 0}).shown == "step 0 of rank0.json"


def test_what_is_waited_is_the_typical_steady_step() -> None:
    def waits(seconds: float | None) -> Breakdown:
        return msgspec.structs.replace(HEALTHY, waiting_s=seconds)

    told = tuple(
        StepAccount(rank=0, index=at, start_s=0.0, parts=waits(each)) for at, each in enumerate((9.0, 0.01, 0.02, 0.03))
    )
    assert case({"steps": told, "warmup_steps": 1}).waited_s == pytest.approx(0.02)
    assert case({"accounting": waits(0.004)}).waited_s == 0.004
    assert case({"accounting": None}).waited_s is None


def test_a_faster_network_of_known_speed_is_named_when_messages_go_over_a_slower_one() -> None:
    def found(*links: Link, used: str = "eth0") -> dict[str, Finding]:
        sending = parts(0.1, compute=0.04, exposed=0.06, hidden=0.0, waiting=0.0)
        network = Network(backend="gloo", transport="tcp", interfaces=(used,), links=links)
        return findings(job([sending, sending], network=network))

    slow = Link(interface="eth0", network="10.0.0.0/24", sent_bytes=3, measured_bits_per_s=1e9)
    fast = Link(interface="eth1", network="10.0.1.0/24", sent_bytes=1, measured_bits_per_s=4e9)
    unknown = Link(interface="eth2", network="10.0.2.0/24")
    told = found(slow, fast, unknown)["slow_network"]
    assert told.sentence == "Messages go over eth0 (1 Gbit/s) although eth1 is 4.0 times as fast (4 Gbit/s)."
    assert told.change == "GLOO_SOCKET_IFNAME=eth1, for every rank."
    assert "eth2, 10.0.2.0/24" not in told.evidence
    assert told.evidence["sent over eth0"] == "75 %"
    assert "slow_network" not in found(slow, unknown)
    assert "slow_network" not in found(slow, fast, used="eth1")
    assert "slow_network" not in found(slow, fast, unknown, used="eth2"), "how fast it is was not told"
    promised = Link(interface="eth1", network="10.0.1.0/24", declared_bits_per_s=4e9)
    assert "slow_network" not in found(slow, promised), "a promise cannot be compared with a measurement"
    barely = msgspec.structs.replace(fast, measured_bits_per_s=1.2e9)
    assert "slow_network" not in found(slow, barely)
