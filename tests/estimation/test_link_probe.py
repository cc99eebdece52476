"""What a rank of a probe times, with a clock that only collectives and layers move."""

import io
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scalescope.estimation import link_probe
from scalescope.estimation.link_probe import IdleHelper, Layers, LinkProbe

CPU = torch.device("cpu")


class Played:
    """An engine's live half and a clock: collectives take what is listed, the last number from then on."""

    def __init__(self, *seconds: float, layer_s: float = 0.001) -> None:
        self.now = 100.0
        self.used = 5.0
        self.layer_s = layer_s
        self.agreed: list[int] = []
        self.names: list[str] = []
        self.sizes: list[int] = []
        self.layers_before: list[int] = []
        self.waited = 0
        self._seconds = list(seconds)
        self._made = 0
        self._ready_at = 0.0

    def agree(self, value: int) -> int:
        self.agreed.append(value)
        return value

    def begin_allreduce(self, tensor: torch.Tensor, name: str) -> float:
        self._begin(tensor, name)
        self._ready_at = self.now + (self._seconds.pop(0) if len(self._seconds) > 1 else self._seconds[0])
        return self._ready_at

    def wait(self, ready_at: float) -> None:
        self.waited += 1
        self.used += 0.25
        self.now = max(self.now, ready_at)

    def is_done(self, ready_at: float) -> bool:
        return self.now >= ready_at

    def broadcast(self, tensor: torch.Tensor, name: str) -> None:
        self.wait(self.begin_allreduce(tensor, name))

    def layer(self) -> None:
        self._made += 1
        self.now += self.layer_s

    def _begin(self, tensor: torch.Tensor, name: str) -> None:
        self.names.append(name)
        self.sizes.append(tensor.numel())
        self.layers_before.append(self._made)
        self._made = 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[Played]:
    """The one that is put in here tells the time."""
    told: list[Played] = []
    sleep = told_sleep(told)
    monkeypatch.setattr(link_probe, "time", SimpleNamespace(perf_counter=lambda: told[0].now, sleep=sleep))
    monkeypatch.setattr(link_probe, "cpu_s", lambda: told[0].used)
    monkeypatch.setattr(LinkProbe, "_layer", lambda _: told[0].layer())
    return told


def told_sleep(told: list[Played]) -> Any:
    def sleep(seconds: float) -> None:
        told[0].now += seconds

    return sleep


def probe(clock: list[Played], played: Played, *sizes: int) -> LinkProbe:
    clock[:] = [played]
    return LinkProbe(played, CPU, sizes)


def test_a_pass_times_both_operations_at_every_size(clock: list[Played]) -> None:
    played = Played(0.01)
    found = list(probe(clock, played, 4, 4096, 1).collectives())
    assert [(each["operation"], each["bytes"]) for each in found] == [
        *(("allreduce", size) for size in (4, 4096, 1)),
        *(("broadcast", size) for size in (4, 4096, 1)),
    ]
    assert list(dict.fromkeys(played.names)) == [
        *(f"scalescope.allreduce.{size}" for size in (4, 4096, 1)),
        *(f"scalescope.broadcast.{size}" for size in (4, 4096, 1)),
    ]
    assert set(played.sizes) == {1, 1024}
    assert played.waited == len(played.names)


@pytest.mark.parametrize(("seconds", "repeats"), [(0.0101, 14), (0.1, 4), (1e-4, 30), (0.02999, 5)])
def test_a_size_is_repeated_for_about_a_seventh_of_a_second(clock: list[Played], seconds: float, repeats: int) -> None:
    played = Played(9.0, seconds)  # the first one is slower, and does not count
    (found, _) = probe(clock, played, 4).collectives()
    assert found["seconds"] == pytest.approx([seconds] * repeats)
    assert found["cpu_seconds"] == pytest.approx([0.25] * repeats)
    assert played.agreed[0] == repeats
    assert len(played.names) == 2 + repeats + 2 + repeats


def test_ranks_agree_on_repetitions_and_layers_once(clock: list[Played]) -> None:
    played = Played(0.1, layer_s=0.0011)
    made = probe(clock, played, 4)
    first, second = list(made.collectives()), list(made.collectives())
    assert played.agreed == [4, 3, 4], "repetitions, layers before a message, repetitions of the broadcast"
    assert [len(each["seconds"]) for each in (*first, *second)] == [4] * 4


def test_every_message_follows_the_same_compute(clock: list[Played]) -> None:
    played = Played(0.1, layer_s=0.0011)
    list(probe(clock, played, 4).collectives())
    # Two tries, then four messages each after three layers; the first had three more to find that out.
    assert played.layers_before == [0, 0, 6, 3, 3, 3, 0, 0, 3, 3, 3, 3]


def test_overlap_is_of_a_layer_and_a_message_alone_and_both_at_once(clock: list[Played]) -> None:
    played = Played(*[0.05] * 6, 0.1, layer_s=0.03)
    found = probe(clock, played).overlap()
    assert found == pytest.approx(
        {
            "layer_s": 0.03,
            "layer_overlapped_s": 0.03,
            "message_s": 0.05,
            "message_overlapped_s": 0.12,  # four layers cover it
        }
    )
    assert played.agreed == [0, 0]
    assert played.layers_before == [10, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4]
    assert set(played.names) == {"scalescope.overlapped"}
    assert set(played.sizes) == {4 << 20}
    assert played.waited == 12


def test_a_message_that_is_done_at_once_leaves_no_layer_to_divide_by(clock: list[Played]) -> None:
    found = probe(clock, Played(0.0, layer_s=0.2)).overlap()
    assert (found["layer_overlapped_s"], found["message_overlapped_s"]) == (0, 0)
    assert found["layer_s"] == pytest.approx(0.2)


def test_layers_are_made_for_about_the_time_that_is_asked(clock: list[Played]) -> None:
    made = probe(clock, Played(1.0, layer_s=0.04)).layers(0.1)
    assert made.made == 3
    assert made.seconds == pytest.approx(0.12)


def test_a_layer_makes_the_gradients_of_its_input_and_its_weights() -> None:
    made = LinkProbe(None, CPU, ())
    made._layer()
    torch.testing.assert_close(made._into, made._output @ made._weights)
    torch.testing.assert_close(made._gradient, made._output.t() @ made._input)
    assert (tuple(made._into.shape), tuple(made._gradient.shape)) == ((16, 1024), (1024, 1024))


def test_a_copied_byte_costs_the_middle_of_five_tries(clock: list[Played], monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(1.0)
    made = probe(clock, played)
    tries = [9.0, 1.0, 3.0, 2.0, 8.0]

    def settle(_: LinkProbe) -> None:
        played.now += tries.pop()

    monkeypatch.setattr(LinkProbe, "_settle", settle)
    assert made.copy_s_per_byte() == pytest.approx(3.0 / (16 << 20))
    assert tries == []


def test_gradients_are_scaled_on_their_way_into_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    into: list[torch.Tensor] = []
    made = LinkProbe(None, CPU, ())
    mul = torch.mul
    noted = SimpleNamespace(
        empty=torch.empty, ones=torch.ones, mul=lambda tensor, by, out: into.append(mul(tensor, by, out=out))
    )
    monkeypatch.setattr(made, "_torch", noted)
    assert made.copy_s_per_byte() > 0
    assert len(into) == 5 * 16
    assert len({each.data_ptr() for each in into}) == 16
    assert {each.numel() for each in into} == {1 << 18}
    assert bool((into[0] == 0.5).all())


class Pipes:
    """A helper that answers from a list."""

    def __init__(self, *answers: str) -> None:
        self.stdin, self.stdout = io.StringIO(), io.StringIO("".join(f"{each}\n" for each in answers))
        self.ended = False

    def communicate(self) -> None:
        self.ended = True


def helper(*answers: str) -> tuple[IdleHelper, Pipes]:
    made, pipes = IdleHelper.__new__(IdleHelper), Pipes(*answers)
    made._process = pipes  # type: ignore[assignment]
    return made, pipes


def test_pairs_of_blocks_alternate_in_their_order() -> None:
    made, pipes = helper("0.0", "1.5", "1.0", "1.25", "1.75")
    made.wait_until_ready()
    assert made.pair(0) == (1.0, 1.5)
    assert made.pair(1) == (1.25, 1.75)
    assert pipes.stdin.getvalue().split() == ["ready", "stopped", "alive", "alive", "stopped"]
    assert not pipes.ended
    made.close()
    assert pipes.ended


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, number)))
    return sent


def test_a_stopped_rank_continues_even_after_an_error(clock: list[Played], signals: list[tuple[int, int]]) -> None:
    clock[:] = [Played(1.0)]
    asked: list[float] = []

    def layers(seconds: float) -> Layers:
        asked.append(seconds)
        assert [number for _, number in signals] in ([], [signal.SIGSTOP])
        return Layers(4, 2.0)

    assert link_probe._block_s(layers, stop=None) == 0.5
    assert signals == []
    assert clock[0].now == pytest.approx(100.02), "it waits until every rank has what it needs"
    assert link_probe._block_s(layers, stop=77) == 0.5
    assert signals == [(77, signal.SIGSTOP), (77, signal.SIGCONT)]
    assert asked == [0.25, 0.25]
    signals.clear()
    with pytest.raises(ZeroDivisionError):
        link_probe._block_s(lambda _: 1 / 0, stop=77)
    assert signals == [(77, signal.SIGSTOP), (77, signal.SIGCONT)]


def asked(monkeypatch: pytest.MonkeyPatch, text: str, *parents: int) -> int:
    left = list(parents)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    monkeypatch.setattr(os, "getppid", lambda: left.pop(0) if len(left) > 1 else left[0])
    monkeypatch.setattr(link_probe, "_block_s", lambda layers, stop: 2.0 if stop is None else float(stop))
    return link_probe.main()


def test_the_helper_answers_a_line_for_each_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(monkeypatch, "ready\nalive\nstopped\n", 41) == 0
    assert capsys.readouterr().out.split() == ["0.0", "2.0", "41.0"]


def test_the_helper_sends_no_signal_once_its_rank_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(monkeypatch, "ready\nstopped\n", 41, 41, 1) == 1
    assert capsys.readouterr().out.split() == ["0.0"]
