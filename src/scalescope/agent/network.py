"""The network of a captured rank: interfaces with what it sent over them, InfiniBand devices, and NCCL's own log.

Nothing of the user's is changed: where NCCL_DEBUG is set neither in the environment nor in NCCL's file, NCCL is asked
for its log in a file of ours.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
from typing import Any

from .halves import group_live
from .recorder import reason, say

FORMAT_VERSION = 1
# Variables that choose a network or how it is used. No others: values of a user's variables are not ours to keep.
_SETTINGS = (
    *("NCCL_ALGO", "NCCL_CROSS_NIC", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX", "NCCL_IB_HCA", "NCCL_NET"),
    *("NCCL_NET_PLUGIN", "NCCL_NSOCKS_PERTHREAD", "NCCL_P2P_DISABLE", "NCCL_PROTO", "NCCL_SHM_DISABLE"),
    *("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_NTHREADS", "GLOO_DEVICE_TRANSPORT", "GLOO_SOCKET_IFNAME"),
    "HOROVOD_GLOO_IFACE",
)
_MASK = 0x891B  # SIOCGIFNETMASK
_DEBUG = "NCCL_DEBUG"


def ask_nccl(folder: str) -> None:
    """Ask NCCL for its log, unless the user has said what it prints, or where."""
    if _DEBUG in os.environ or _DEBUG + "_FILE" in os.environ:
        return
    for path in (os.environ.get("NCCL_CONF_FILE", ""), os.path.expanduser("~/.nccl.conf"), "/etc/nccl.conf"):  # noqa: PTH111
        with contextlib.suppress(OSError), open(path, errors="replace") as file:
            if any(line.strip().startswith(_DEBUG) for line in file):
                return
    os.environ[_DEBUG] = "INFO"
    os.environ[_DEBUG + "_FILE"] = os.path.join(folder, "nccl-%h-%p.log")  # noqa: PTH118 - cheap


class Network:
    """The network as one rank sees it; written down when the process ends."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.reset()

    def reset(self) -> None:
        """Begin anew, as in a forked child."""
        self._identity: dict[str, Any] = {}
        self._sent: dict[str, int] = {}

    def begin(self, **identity: Any) -> None:
        """The training begins: what is sent from here on counts."""
        self._identity, self._sent = identity, sent_bytes()

    def close(self) -> None:
        """Write the file; a rank that never trained has none."""
        if not self._identity:
            return
        found = {
            "version": FORMAT_VERSION,
            **self._identity,
            "interfaces": interfaces(self._sent),
            "devices": devices(),
            "settings": {name: os.environ[name] for name in _SETTINGS if name in os.environ},
            "nccl_log": os.environ.get(_DEBUG + "_FILE", ""),
        }
        path = os.path.join(self._folder, f"network-rank{self._identity['rank']}.json")  # noqa: PTH118 - cheap
        try:
            with open(path, "w") as file:
                json.dump(found, file)
        except OSError as problem:
            say(f"cannot write this rank's network: {reason(problem)}")


def sent_bytes() -> dict[str, int]:
    """Bytes that this host sent so far, by interface of this network namespace."""
    found = {}
    with contextlib.suppress(OSError), open("/proc/self/net/dev") as file:
        for line in file:
            name, colon, numbers = line.partition(":")
            words = numbers.split()
            if colon and len(words) > 8:
                found[name.strip()] = int(words[8])
    return found


def interfaces(before: dict[str, int]) -> list[dict[str, Any]]:
    """Interfaces with an IPv4 address: its network, the speed that the driver tells, and bytes sent since `before`."""
    now, found = sent_bytes(), []
    for _, name in socket.if_nameindex():
        address, mask = group_live.interface_address(name), group_live.interface_address(name, _MASK)
        speed = _text(f"/sys/class/net/{name}/speed")  # In Mbit/s; none or -1 where the driver does not tell
        if address and mask:
            found.append(
                {
                    "name": name,
                    "address": address,
                    "network": str(ipaddress.ip_network(f"{address}/{mask}", strict=False)),
                    "bits_per_s": int(speed) * 1e6 if speed.isdigit() else 0.0,
                    "sent_bytes": max(now.get(name, 0) - before.get(name, 0), 0),
                }
            )
    return found


def devices(folder: str = "/sys/class/infiniband") -> list[dict[str, Any]]:
    """InfiniBand and RoCE ports that are up."""
    found = []
    for device in _names(folder):
        for port in _names(f"{folder}/{device}/ports"):
            place = f"{folder}/{device}/ports/{port}"
            rate = _text(f"{place}/rate").split()  # 400 Gb/sec (4X NDR)
            if "ACTIVE" in _text(f"{place}/state"):
                kind = "RoCE" if _text(f"{place}/link_layer") == "Ethernet" else "IB"
                gbit = float(rate[0]) if rate and rate[0].replace(".", "", 1).isdigit() else 0.0
                found.append({"name": f"{device}:{port}", "kind": kind, "bits_per_s": gbit * 1e9})
    return found


def _names(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))  # noqa: PTH208 - pathlib is slow
    return []


def _text(path: str) -> str:
    with contextlib.suppress(OSError), open(path, errors="replace") as file:
        return file.read().strip()
    return ""
