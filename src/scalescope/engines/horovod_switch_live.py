"""Changes Horovod's knobs between steps: it stops, and starts again in a fresh copy of its own library.

A library of Horovod takes its knobs once: started again it keeps old values, or crashes. A copy is a library of its
own; it is never unloaded, so there is a limit to switches. Standard library, torch and horovod only.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import importlib.machinery
import importlib.util
import os
import struct
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

MOST_SWITCHES = 60
_FILES_PER_SWITCH = 10  # What Gloo leaves open in a library that was stopped, at least
_MIB = 1024 * 1024
_FUSION, _CYCLE, _CACHE = "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY"
_HIERARCHICAL, _TORUS = "HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_TORUS_ALLREDUCE"
_DEFAULTS = {_FUSION: 128 * _MIB, _CYCLE: 1.0, _CACHE: 1024, _HIERARCHICAL: 0, _TORUS: 0}
_AS_THEY_ARE = {
    "cycle_time_ms": _CYCLE,
    "cache_capacity": _CACHE,
    "hierarchical_allreduce": _HIERARCHICAL,
    "torus_allreduce": _TORUS,
}
_STORE = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")
_MULTIPLE = 3  # MPI_THREAD_MULTIPLE of Open MPI, MPICH and those made from them


class Switcher:
    """Horovod's start, stop and knobs in this rank; `horovod` is the module horovod.torch, `idle` an IdleThreads."""

    def __init__(self, horovod: Any, idle: Any = None) -> None:
        self._horovod = horovod
        self._ops: Any = importlib.import_module("horovod.torch.mpi_ops")
        self._started_with: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self._image = b""
        self._copies = 0
        self._spares: list[tuple[Any, Any]] = []
        self._is_fresh = True  # Whether the library in use was never started
        self._mpi: Any = None  # The library with which MPI was begun here
        self._files_per_switch = _FILES_PER_SWITCH
        self._idle = idle
        self.switches = 0

    # The script's own start and stop

    def before_start(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """The script is about to start Horovod: MPI has to outlive Horovod's stops, and a used library its start."""
        self._started_with = arguments, options
        if self.switches and not self._is_fresh:
            self.load()
            self._use_spare()
        self._is_fresh = False
        used = [os.environ.get(name, "mpi").lower() for name in ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS")]
        basics: Any = self._ops._basics
        if self._mpi is not None or not basics.mpi_built() or "mpi" not in used:
            return
        library, begun = basics.MPI_LIB_CTYPES, ctypes.c_int()
        library.MPI_Initialized(ctypes.byref(begun))
        if not begun.value:  # who began it, mpi4py for instance, ends it as well
            library.MPI_Init_thread(None, None, _MULTIPLE, ctypes.byref(ctypes.c_int()))
            self._mpi = library
            atexit.register(self.after_stop)  # Horovod's own stop is registered later, and comes first

    def after_stop(self) -> None:
        """The script has stopped Horovod, which would have ended MPI, too."""
        if self._mpi is not None:
            mpi, self._mpi = self._mpi, None
            is_over = ctypes.c_int()
            mpi.MPI_Finalized(ctypes.byref(is_over))
            if not is_over.value:
                mpi.MPI_Finalize()

    # What is in force, and what forbids a switch

    @property
    def controller(self) -> str:
        """Controller through which the ranks agree: "mpi" or "gloo"."""
        return "mpi" if self._horovod.mpi_enabled() else "gloo"

    def current(self) -> dict[str, Any]:
        """The knobs as this training was started with them."""
        found = {name: float(os.environ.get(name) or usual) for name, usual in _DEFAULTS.items()}
        return {
            "fusion_threshold_mb": found[_FUSION] / _MIB,
            "cycle_time_ms": found[_CYCLE],
            "cache_capacity": int(found[_CACHE]),
            "hierarchical_allreduce": bool(found[_HIERARCHICAL]),
            "torus_allreduce": bool(found[_TORUS]),
        }

    def refusal(self) -> str:
        """Why knobs cannot change in this training, in one line; empty: they can."""
        for name, why in _FORBIDDING.items():
            if os.environ.get(name, "").lower() not in ("", "0", "false"):
                return why
        if not self._horovod.is_initialized():
            return "Horovod is not running"
        sets = self._ops._basics._get_process_set_ids_and_ranks()
        given = self._started_with[1].get("process_sets") or next(iter(self._started_with[0][1:2]), None) or ()
        if len(sets) > 1 and (isinstance(given, str) or len(sets) != 1 + len(given)):
            return "process sets were added while it trains"
        return "" if self.switches_left > 1 else f"{self.switches} switches are made, and no more are possible"

    @property
    def switches_left(self) -> int:
        """Number of switches left: every copy of the library stays in memory, and with Gloo keeps files open."""
        left = MOST_SWITCHES - self.switches
        if self.controller == "gloo":
            left = min(left, (_most_files() - _open_files()) // self._files_per_switch)
        return left

    def has_open_operations(self) -> bool:
        """True if operations of the script are outstanding: their handles mean nothing to another library."""
        return bool(self._ops._handle_map)

    # A switch: every rank loads, stops, starts, in this order; ranks agree in between

    def load(self, variables: dict[str, str] | None = None) -> None:
        """Have two fresh copies of the library ready: one to use, one for the way back.

        Autotune's variables are read as a library is loaded, and not as it starts.
        """
        while len(self._spares) < 2:
            self._spares.append(self._fresh_copy())
        if variables:
            with _environment(variables):
                self._spares[-1] = self._fresh_copy()

    def _fresh_copy(self) -> tuple[Any, Any]:
        self._image = self._image or loadable(self._ops.mpi_lib.__file__)
        self._copies += 1
        own_name = self._ops.mpi_lib.__name__.rpartition(".")[2]
        name = f"scalescope_horovod_{self._copies}.{own_name}"  # a name that is known would be the library behind it
        number, path = tempfile.mkstemp(prefix="scalescope-horovod-", suffix=".so")
        try:
            with open(number, "wb") as file:
                file.write(self._image)
            loader = importlib.machinery.ExtensionFileLoader(name, path)
            spec = importlib.util.spec_from_file_location(name, path, loader=loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            module.__file__ = self._ops.mpi_lib.__file__
            return module, ctypes.CDLL(path)
        finally:
            os.unlink(path)  # noqa: PTH108 - pathlib is slow to import

    def stop(self) -> None:
        """No operation is open any more, on any rank."""
        self._ops.shutdown()
        if self._idle:
            self._idle.put_to_sleep()

    def start(self, values: dict[str, Any], variables: dict[str, str], store: tuple[str, int] | None) -> None:
        """Begin again in the copy that was loaded, with these knobs; `store`: where Gloo's ranks find each other.

        What the environment says is as before afterwards.
        """
        self._use_spare()
        self._is_fresh = False
        self.switches += 1
        around = {**_as_variables(values), **variables}
        if store:
            around |= zip(_STORE, (store[0], str(store[1])))  # noqa: B905 - Python 3.9 has no strict
        arguments, options = self._started_with
        files = _open_files()
        with _environment(around), self._idle.noted() if self._idle else contextlib.nullcontext():
            self._ops.init(*arguments, **options)
        self._files_per_switch = max(self._files_per_switch, _open_files() - files)

    def _use_spare(self) -> None:
        self._ops.mpi_lib, self._ops._basics.MPI_LIB_CTYPES = self._spares.pop()
        self._is_fresh = True


_FORBIDDING = {
    "HOROVOD_TIMELINE": "a timeline is written, which would begin anew with every switch: leave HOROVOD_TIMELINE out",
    "HOROVOD_ELASTIC": "the training is elastic: Horovod starts again by itself there",
    "HOROVOD_AUTOTUNE": "Horovod's own autotune is on: leave HOROVOD_AUTOTUNE out",
    "HOROVOD_MPI_THREADS_DISABLE": "MPI may be used by one thread only: leave HOROVOD_MPI_THREADS_DISABLE out",
}


def why_not_here() -> str:
    """Why this Python's Horovod cannot be switched, whatever the training; empty: it can. Tried for real."""
    if not sys.platform.startswith("linux"):
        return "its library can be copied on Linux only"
    try:
        import horovod.torch as hvd

        switcher = Switcher(hvd)
        switcher.load()
        copy = switcher._spares[0][1]
        if not hasattr(copy, "horovod_init") or not isinstance(switcher._ops._handle_map, dict):
            return f"Horovod {importlib.import_module('horovod').__version__} has another interface"
        if hvd.gloo_built():
            rendezvous_server()
        if hvd.mpi_built() and not hasattr(copy, "MPI_Init_thread"):
            return "its MPI cannot be called from outside"
    except Exception as problem:
        return f"a copy of its library cannot be used ({[*str(problem).splitlines(), type(problem).__name__][0]})"
    return ""


def rendezvous_server() -> Any:
    """Create the server of Horovod at which Gloo's ranks find each other; it does not listen yet."""
    server = importlib.import_module("horovod.runner.http.http_server").RendezvousServer()
    assert callable(server.start)
    assert callable(server.init)
    return server


def loadable(path: str) -> bytes:
    """Read what the dynamic loader needs of a library, without debug information, which is most of the file."""
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":  # not of a 64-bit little-endian machine
            return head + file.read()
        at, (size, count) = struct.unpack_from("<Q", head, 32)[0], struct.unpack_from("<HH", head, 54)
        file.seek(at)
        table = file.read(size * count)
        parts = [struct.unpack_from("<IIQQQQ", table, size * number) for number in range(count)]
        end = max(offset + length for kind, _, offset, _, _, length in parts if kind == 1)
        file.seek(0)
        image = bytearray(file.read(end))
    image[40:48] = bytes(8)  # no table of sections any more
    image[60:64] = bytes(4)
    return bytes(image)


def _as_variables(values: dict[str, Any]) -> dict[str, str]:
    found = {
        _AS_THEY_ARE[name]: f"{value:g}" if isinstance(value, float) else str(int(value))
        for name, value in values.items()
        if name in _AS_THEY_ARE
    }
    if "fusion_threshold_mb" in values:
        found[_FUSION] = str(int(values["fusion_threshold_mb"] * _MIB))
    return found


@contextlib.contextmanager
def _environment(changed: dict[str, str]) -> Iterator[None]:
    """With these variables, and without what they were afterwards."""
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - pathlib is slow to import


def _most_files() -> int:
    """That this process may have open; some are the training's own."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 30) if soft == resource.RLIM_INFINITY else soft - 100
