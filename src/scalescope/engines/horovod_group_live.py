"""Agreement of Horovod's ranks: through Horovod, or through a store on rank 0's host, which needs no Horovod.

Standard library, torch and horovod only.
"""

from __future__ import annotations

import datetime
import importlib
import os
import socket
from typing import Any

from .group_live import ControlGroup, as_tensor, encoded, first_trouble, in_trouble, interface_address, one_line

_PATIENCE = datetime.timedelta(minutes=30)  # A rank may evaluate alone while the others wait for it
_ANSWERS_WITHIN_S = 2
_MOST_ADDRESSES = 20


class HorovodControlGroup(ControlGroup):
    """Horovod's ranks; `horovod` is the module horovod.torch."""

    engine = "horovod"
    wraps_optimizers = True

    def __init__(self, horovod: Any) -> None:
        self._horovod = horovod
        self._store: Any = None
        self._server: Any = None
        self._gathered = 0
        self.address = ""  # Of rank 0's host, as all ranks reach it; known once there is a store
        self.rank, self.size = horovod.rank(), horovod.size()
        self.backend = "mpi" if horovod.mpi_enabled() else "gloo"
        super().__init__()

    def allreduce(self, tensor: Any, name: str) -> None:
        """As the training does it."""
        self._horovod.allreduce_(tensor, name=f"scalescope.{name}", op=self._horovod.Sum)

    def open_store(self) -> str:
        """From now on agree without Horovod, so that ranks can agree while it is stopped; why not, or empty."""
        problem, offer = "", {}
        try:
            make_store = _kind_of_store()
            if self.rank == 0:
                self._server = make_store("127.0.0.1", 0, None, True, _PATIENCE, False)
                mark = os.urandom(8).hex()
                self._server.set("mark", mark)
                offer = {"addresses": own_addresses()[:_MOST_ADDRESSES], "port": self._server.port, "mark": mark}
        except Exception as error:  # a torch without it, or no port
            problem = one_line(error)
        messages = self.gather({**in_trouble(problem), **offer})
        if first_trouble(messages):
            return first_trouble(messages)
        addresses, port, mark = (messages[0][name] for name in ("addresses", "port", "mark"))
        reached = [address for address in addresses if _is_marked(address, port, mark)]
        everybody = self.gather({"reached": reached})
        self.address = next((each for each in addresses if all(each in one["reached"] for one in everybody)), "")
        if not self.address:
            return f"rank 0's host answers all other ranks on none of its addresses ({', '.join(addresses)})"
        self._store = make_store(self.address, port, None, False, _PATIENCE, False)
        return ""

    def _gather(self, data: bytes) -> list[bytes]:
        if self._store is None:
            rows = self._horovod.allgather(as_tensor(data).reshape(1, -1), name="scalescope.words")
            return [bytes(row.tolist()) for row in rows]
        self._say(data)
        number, everybody = self._gathered - 1, range(self.size)
        messages = self._store.multi_get([f"{number}/{rank}" for rank in everybody])
        if self.rank == 0:  # whoever sends something this time has read what was sent last time
            for rank in everybody:
                self._store.delete_key(f"{number - 1}/{rank}")
        return list(messages)

    def _say(self, data: bytes) -> None:
        self._store.set(f"{self._gathered}/{self.rank}", data)
        self._gathered += 1

    def leave(self, why: str) -> None:
        """Say that this rank makes no more steps for now; the others hear it when they next want to agree."""
        if self._store is not None:
            self._say(encoded({**in_trouble(why), "left": True}))

    def close(self) -> None:
        """Whoever wants to agree hears that this rank does not; rank 0 keeps the store, which others may still read."""
        if self._store is not None:
            self._say(encoded({**in_trouble("the search failed on another rank"), "failed": True}))


def own_addresses() -> list[str]:
    """IPv4 addresses of this host; loopback last, the interface that Gloo has to use first."""
    wanted = os.environ.get("HOROVOD_GLOO_IFACE", "").split(",")
    names = sorted((name for _, name in socket.if_nameindex()), key=lambda name: name not in wanted)
    found = dict.fromkeys(filter(None, map(interface_address, names)))
    return sorted(found, key=lambda address: address.startswith("127."))


def reach(address: str, port: int) -> None:
    """An error where nobody listens there."""
    with socket.create_connection((address, port), _ANSWERS_WITHIN_S):
        pass


def _kind_of_store() -> Any:
    """torch's key-value store; not every torch has it."""
    return importlib.import_module("torch.distributed").TCPStore


def _is_marked(address: str, port: int, mark: str) -> bool:
    """True if rank 0's store answers there, by its mark: every host has some addresses that others have, too."""
    try:
        reach(address, port)
        store = _kind_of_store()(address, port, None, False, datetime.timedelta(seconds=_ANSWERS_WITHIN_S), False)
        return bool(store.get("mark") == mark.encode())
    except Exception:  # nobody is there, or somebody else
        return False
