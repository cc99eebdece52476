"""Logs of NCCL (NCCL_DEBUG=INFO): which network it took, and why no other one.

Lines of all ranks may stand in one file, mixed with a training's own output. The words are those of NCCL 2.4 to 2.2x
and of RCCL; lines that are not known say nothing.
"""

import re
from collections.abc import Iterable
from itertools import islice

from scalescope.records.explanation import Device, Network

_LINE = re.compile(r"\bNCCL (?:INFO|WARN) (?P<text>.*)")
_MOST_LINES = 2_000_000  # Of one log; what decides stands in the first few thousand
_SOCKETS = re.compile(r"NET/Socket ?: ?Using (?P<interfaces>.*)")
_INTERFACE = re.compile(r"\[\d+\]([\w.-]+):[\da-fA-F.:%]+<\d+>")
_DEVICES = re.compile(r"NET/IB ?: ?Using (?P<devices>.*)")
_DEVICE = re.compile(r"(?P<name>[\w.-]+:\d+)/(?P<kind>IB|RoCE)\b")
_NONE = re.compile(r"NET/IB ?: ?No device found")
_NO_VERBS = re.compile(r"Failed to open libibverbs")
_NETWORK = re.compile(r"Using network (?P<network>[\w .+-]+?)\s*$")
_VIA = re.compile(r"via NET/(?P<transport>[A-Za-z][\w +-]*?)/\d+")
_SETTING = re.compile(r"(?P<name>NCCL_[A-Z0-9_]+) set (?:by environment )?to (?P<value>[^\s]+?)\.?\s*$")
_CHANNELS = re.compile(r"(?P<channels>\d+) coll channels")
_NODES = re.compile(r"nNodes (?P<nodes>\d+)")
_RING, _TREE, _NVLS = re.compile(r"Ring \d+ :|Connected all rings"), re.compile(r"Trees \["), re.compile(r"NVLS comm")
_CHOICE = re.compile(r"-> Algo (?P<algorithm>\d)\b|\bAlgo (?P<word>RING|TREE|NVLS\w*|COLLNET\w*) proto")
_ALGORITHMS = ("tree", "ring", "collnet direct", "collnet chain", "NVLS", "NVLS tree")


def is_nccl_log(text: str) -> bool:
    """True for the beginning of a file that has lines of NCCL."""
    return " NCCL INFO " in text


def read_nccl_log(lines: Iterable[str]) -> Network | None:
    """The network that NCCL took, as far as it says; None where nothing was match."""
    transport, sent = "", dict[str, int]()
    interfaces, devices, settings = dict[str, None](), dict[str, Device](), dict[str, str]()
    channels = nodes = None
    no_device = no_verbs = heard = False
    algorithms, chosen = dict[str, None](), dict[str, None]()
    for line in islice(lines, _MOST_LINES):
        printed = _LINE.search(line)
        if printed is None:
            continue
        text, heard = printed["text"], True
        if match := _SOCKETS.search(text):
            interfaces.update(dict.fromkeys(_INTERFACE.findall(match["interfaces"])))
        elif match := _DEVICES.search(text):
            devices |= {each["name"]: Device(name=each["name"], kind=each["kind"]) for each in _DEVICE.finditer(text)}
        elif match := _NETWORK.search(text):
            transport = match["network"]
        elif match := _VIA.search(text):
            sent[match["transport"]] = sent.get(match["transport"], 0) + 1
        elif match := _SETTING.search(text):
            settings[match["name"]] = match["value"]
        elif match := _CHANNELS.search(text):
            channels = int(match["channels"])
        no_device, no_verbs = no_device or bool(_NONE.search(text)), no_verbs or bool(_NO_VERBS.search(text))
        if match := _NODES.search(text):
            nodes = int(match["nodes"])
        if match := _CHOICE.search(text):
            number = int(match["algorithm"] or 0)
            known = match["word"] or (_ALGORITHMS[number] if number < len(_ALGORITHMS) else "")
            chosen[known.lower() if known.isupper() and known != "NVLS" else known] = None
        for name, pattern in (("ring", _RING), ("tree", _TREE), ("NVLS", _NVLS)):
            if pattern.search(text):
                algorithms[name] = None
    if not heard:
        return None
    if sent:  # what channels really go over is more than what was planned
        transport = max(sent, key=lambda name: sent[name])
    elif not transport and (interfaces or devices):
        transport = "IB" if devices else "Socket"
    return Network(
        backend="nccl",
        transport=transport,
        interfaces=tuple(interfaces),
        devices=tuple(devices.values()),
        algorithms=tuple(chosen or algorithms),
        settings=settings,
        no_device=no_device,
        no_verbs=no_verbs,
        channels=channels,
        nodes=nodes,
    )
