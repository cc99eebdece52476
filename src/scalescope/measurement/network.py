"""The network of a captured launch: what its ranks saw, put together, and how fast the networks of two hosts are."""

import contextlib
import json
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from scalescope.agent import link_speed
from scalescope.jobs.hosts import run_python
from scalescope.jobs.output import outputs
from scalescope.jobs.plan import Settings, launcher_of
from scalescope.launchers.srun import SRUN
from scalescope.records.explanation import Device, Link, Network
from scalescope.records.job import place
from scalescope.records.run import Point
from scalescope.traces.nccl_log import read_nccl_log

_MOST_LINKS = 4  # Networks that are timed
_PORTS = range(20_000, 32_000)  # Below those that the kernel gives away
# Runs a program with arguments on a host, counted in order of its ranks; its output, empty where that failed.
Enter = Callable[[int, str, Sequence[str]], str]


class _Interface(msgspec.Struct):
    name: str
    address: str
    network: str
    bits_per_s: float = 0.0
    sent_bytes: int = 0


class _OfRank(msgspec.Struct):
    """A rank's file, as agent/network.py writes it."""

    host: str = ""
    pid: int = 0
    rank: int = 0
    interfaces: list[_Interface] = []
    devices: list[Device] = []
    settings: dict[str, str] = {}
    nccl_log: str = ""  # NCCL_DEBUG_FILE: the user's, or ours


def network_of(folder: Path, backend: str, enter: Enter | None) -> Network | None:
    """Network over which the ranks of a launch exchanged messages; None: no rank reported one.

    Args:
        folder: Of the launch.
        backend: Of the process group.
        enter: Reaches the hosts, to time the networks that they share; None: they are not timed.
    """
    ranks = sorted(_ranks(folder), key=lambda each: each.rank)
    if not ranks:
        return None
    hosts: dict[str, _OfRank] = {}
    for each in ranks:
        hosts.setdefault(each.host, each)
    one, *others = hosts.values()
    links, addresses = _links(one, others[0]) if others else ((), [])
    used = max(one.interfaces, key=lambda each: each.sent_bytes, default=None)
    named = (used.name,) if used and used.sent_bytes else ()
    if len(links) > 1 and enter:
        links = _timed(links, addresses, enter)
    told = read_nccl_log(_lines(folder, ranks)) if backend == "nccl" else None
    seen = told or Network(backend=backend, transport="tcp" if backend == "gloo" else "", interfaces=named)
    return msgspec.structs.replace(
        seen,
        links=links,
        devices=seen.devices or tuple(one.devices),
        nodes=seen.nodes or len(hosts),
        settings={**one.settings, **seen.settings},
    )


def _ranks(folder: Path) -> list[_OfRank]:
    found = []
    for path in folder.glob("network-rank*.json"):
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):  # of a rank that was killed
            found.append(msgspec.json.decode(path.read_bytes(), type=_OfRank))
    return found


def _lines(folder: Path, ranks: Sequence[_OfRank]) -> Iterator[str]:
    """Lines of NCCL: of our file, of the user's, and of what ranks printed."""
    theirs = [each.nccl_log.replace("%h", each.host).replace("%p", str(each.pid)) for each in ranks if each.nccl_log]
    for path in dict.fromkeys([*folder.glob("nccl-*.log"), *map(Path, theirs), *outputs(folder)]):
        with contextlib.suppress(OSError):
            if path.is_file():  # and not /dev/stdout
                yield from path.read_text(errors="replace").splitlines()


def _links(one: _OfRank, other: _OfRank) -> tuple[tuple[Link, ...], list[tuple[str, str]]]:
    """IP networks of both hosts, in the order of what was sent over them, and the addresses there."""
    there = {each.network: each for each in other.interfaces}
    shared = [each for each in one.interfaces if each.network in there and each.address != there[each.network].address]
    shared.sort(key=lambda each: -each.sent_bytes)
    links = tuple(
        Link(
            interface=each.name,
            network=each.network,
            sent_bytes=each.sent_bytes,
            declared_bits_per_s=each.bits_per_s,
        )
        for each in shared
    )
    return links, [(each.address, there[each.network].address) for each in shared]


def _timed(links: Sequence[Link], addresses: Sequence[tuple[str, str]], enter: Enter) -> tuple[Link, ...]:
    """The same, each with what one connection from the first host to the second brings over it."""
    program, token = Path(link_speed.__file__).read_text(), secrets.token_hex(16)
    asked = list(zip(addresses, random.sample(_PORTS, len(addresses)), strict=True))[:_MOST_LINKS]
    there = json.dumps([(far, near, port) for (near, far), port in asked])
    here = json.dumps([(near, far, port) for (near, far), port in asked])
    with ThreadPoolExecutor(2) as pool:
        receiving = pool.submit(enter, 1, program, ("receive", token, there))
        pool.submit(enter, 0, program, ("send", token, here)).result()
        answer = receiving.result()
    try:
        speeds = msgspec.json.decode(answer.strip().splitlines()[-1] if answer.strip() else "[]", type=list[float])
    except msgspec.DecodeError:
        speeds = []
    speeds += [0.0] * (len(links) - len(speeds))
    return tuple(
        msgspec.structs.replace(link, measured_bits_per_s=speed) for link, speed in zip(links, speeds, strict=False)
    )


def way_in(settings: Settings, point: Point) -> Enter | None:
    """Return a function that runs a program on a host of the launch; None: one host, or the command places ranks."""
    placed = place(point.np, settings.hosts, oversubscribe=settings.request.oversubscribe)
    if not settings.named_hosts or len(placed) < 2:
        return None
    reach = SRUN.program if launcher_of(settings, point).scheduler else settings.request.ssh

    def enter(number: int, program: str, arguments: Sequence[str]) -> str:
        return run_python(placed[number][0], reach, (settings.python, "-", *arguments), program)

    return enter
