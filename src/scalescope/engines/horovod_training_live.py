"""Horovod as scripts use it, and how a search switches it: all ranks stop it, and start it again with other knobs.

Standard library, torch and horovod only.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from . import horovod_switch_live
from .group_live import ControlGroup, objection
from .horovod_group_live import HorovodControlGroup, reach
from .idle_threads_live import IdleThreads
from .room_live import no_room_for

_SPARE_SWITCHES = 3  # To put the winner in force, and for the way back
_CROWDED = "there are more ranks than cores, and after some switches those of Gloo keep each other from them"
_BYTES_PER_SWITCH = 4 << 20  # Of a copy of the library, with what it wrote to
JOINED = "the script calls hvd.join(), after which ranks make no steps together: give every rank equally many batches"
STOPPED = "the script stopped Horovod"


class HorovodTraining:
    """The Horovod of this process, for a search that begins when its optimizer is made."""

    engine = "horovod"
    made = "hvd.DistributedOptimizer was made"
    hierarchical: Any = None

    def __init__(self, horovod: Any, tuned: Any) -> None:
        self._horovod, self._tuned = horovod, tuned
        self._switcher = horovod_switch_live.Switcher(horovod, IdleThreads())
        self._store: Any = None  # Where Gloo's ranks find each other; on rank 0
        self._default: dict[str, Any] = {}
        self._running: tuple[dict[str, Any], dict[str, str]] = ({}, {})
        self._device, self._rank, self._port = "cpu", 0, 0
        self._client: Any = None
        self.model: Any = None
        self._watch()

    def _watch(self) -> None:
        horovod, guarded = self._horovod, self._tuned.guarded
        init, shutdown, join, wrap = horovod.init, horovod.shutdown, horovod.join, horovod.DistributedOptimizer
        before_start = guarded("Horovod cannot be switched", self._switcher.before_start)
        after_stop = guarded("MPI is not ended", self._switcher.after_stop)
        wrapped = guarded("the search does not begin as it should", self._wrapped)

        def tell(how: str, why: str) -> None:
            """End the search by its `give_up`, `leave` or `let_go`, if there is one."""
            if self._client is not None:
                getattr(self._client, how)(why)

        tell_search = guarded("the search does not end as it should", tell)

        @functools.wraps(init)
        def starting(*arguments: Any, **options: Any) -> Any:
            if not horovod.is_initialized():
                before_start(arguments, options)
            return init(*arguments, **options)

        @functools.wraps(shutdown)
        def stopping(*arguments: Any, **options: Any) -> Any:
            tell_search("give_up", STOPPED)
            result = shutdown(*arguments, **options)
            after_stop()
            return result

        @functools.wraps(join)
        def joining(*arguments: Any, **options: Any) -> Any:
            tell_search("leave", JOINED)
            result = join(*arguments, **options)
            tell_search("let_go", JOINED)  # all ranks are here
            return result

        @functools.wraps(wrap)
        def wrapping(optimizer: Any, *arguments: Any, **options: Any) -> Any:
            made = wrap(optimizer, *arguments, **options)
            self._device = next((each.device.type for group in made.param_groups for each in group["params"]), "cpu")
            wrapped()
            return made

        horovod.init, horovod.shutdown, horovod.join = starting, stopping, joining
        horovod.DistributedOptimizer = wrapping

    def reset(self) -> None:
        """Do nothing: there is no state that a forked child would have to forget."""

    def note_root(self, root: Any) -> None:
        """See the model that is trained."""
        self.model = root

    def _wrapped(self) -> None:
        """Begin the search at the first of several optimizers: Horovod's knobs are the same for all."""
        if self._tuned.waits:
            self._tuned.begin_search(self, "hvd.DistributedOptimizer was made after the first steps")

    def watch_leaving(self, client: Any) -> Callable[[], None]:
        """Ranks join at different steps, and stop alike."""
        self._client = client
        return lambda: None

    @property
    def is_first(self) -> bool:
        """True if this is rank 0."""
        return self._rank == 0

    def about(self) -> dict[str, Any]:
        """As Horovod has it."""
        self._rank = self._horovod.rank()
        return {"world_size": self._horovod.size(), "backend": self._switcher.controller, "device": self._device}

    def meet(self) -> tuple[ControlGroup | None, str]:
        """In a store on rank 0's host: Horovod is stopped while they agree on a switch."""
        group = HorovodControlGroup(self._horovod)
        refused = group.open_store()
        if not refused and self._switcher.controller == "gloo":
            crowded = _CROWDED if group.ranks_here > group.cores else ""
            refused = group.agree(crowded or (objection(self._open_rendezvous) if group.rank == 0 else ""))
            if not refused:
                self._port = group.share({"port": self._port})["port"]
                refused = group.agree(objection(lambda: reach(group.address, self._port)))
        return group, refused

    def _open_rendezvous(self) -> None:
        """Start a server for Gloo's rendezvous after a switch: the launcher's store keeps the ranks' old addresses."""
        store = horovod_switch_live.rendezvous_server()
        self._port = store.start()
        self._store = store

    def refusal(self) -> str:
        """Reason against a switch; empty: none."""
        return str(self._switcher.refusal())

    def prepare(self, group: Any) -> dict[str, Any]:
        """The first copies of the library."""
        import torch

        switches = self._switcher.switches_left
        if no_room := no_room_for(_BYTES_PER_SWITCH * switches, torch.device("cpu"), group.ranks_here):
            raise MemoryError(no_room)
        self._switcher.load()
        self._default = self._switcher.current()
        self._running = self._default, {}
        return {
            "current": self._default,
            "nccl_build": bool(self._horovod.nccl_built()),
            "most_switches": switches - _SPARE_SWITCHES,
        }

    def is_busy(self) -> bool:
        """True if operations of the script are outstanding."""
        return bool(self._switcher.has_open_operations())

    def switch(self, values: dict[str, Any], variables: dict[str, str], group: Any) -> str:
        """Stop, and start again in a fresh copy of the library; if that fails, start again as at first."""
        known = {name: value for name, value in values.items() if name in self._default}
        at_first: tuple[dict[str, Any], dict[str, str]] = (self._default, {})
        wanted = ({**self._default, **known}, variables)
        if wanted == self._running:
            return ""
        problem: str = group.agree(objection(lambda: self._switcher.load(variables)))
        if problem and self._running == at_first:
            return problem
        problem = problem or self._restart(known, variables, group)
        if problem:
            wanted = at_first
            if on_the_way_back := self._restart({}, {}, group):
                raise RuntimeError(f"Horovod does not start again: {on_the_way_back}")
        self._running = wanted
        return problem

    def restore(self, group: Any) -> None:
        """The knobs as they were at first."""
        if problem := self.switch({}, {}, group):
            raise RuntimeError(problem)

    def fixed_by(self, values: dict[str, Any], problem: str) -> dict[str, str]:
        """None."""
        return {}

    def finish(self) -> None:
        """Stop the rendezvous server, which no rank needs any more, in a thread, as it takes a while."""
        if self._store is not None:
            threading.Thread(target=self._store.stop, daemon=True).start()
            self._store = None

    @property
    def cannot_train(self) -> bool:
        """True if Horovod did not start again."""
        return not self._horovod.is_initialized()

    def _restart(self, values: dict[str, Any], variables: dict[str, str], group: Any) -> str:
        """On every rank, whatever fails on one of them; what failed first."""
        problem: str = group.agree(objection(self._switcher.stop))
        if self._store is not None:
            self._store.init([])  # what ranks wrote before they stopped is of no use any more
        problem = problem or group.agree("")  # from here on rank 0's store is empty
        store = (group.address, self._port) if self._port else None
        return problem or group.agree(objection(lambda: self._switcher.start(values, variables, store)))
