"""What NCCL prints with NCCL_DEBUG=INFO: which network it took, and why no other one.

Lines of all ranks may stand in one file, mixed with a training's own output. The words are those of NCCL 2.4 to 2.2x
and of RCCL; lines that are not known say nothing.
"""

import re
from collections.abc import Iterable

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
    """The network that NCCL took, as far as it says; None where nothing was said."""
    transport, sent = "", dict[str, int]()
    interfaces, devices, settings = dict[str, None](), dict[str, Device](), dict[str, str]()
    found: dict[str, object] = {}
    no_device = no_verbs = heard = False
    algorithms, chosen = dict[str, None](), dict[str, None]()
    for number, line in enumerate(lines):
        match = _LINE.search(line)
        if number > _MOST_LINES or match is None:
            continue
        text, heard = match["text"], True
        if said := _SOCKETS.search(text):
            interfaces.update(dict.fromkeys(_INTERFACE.findall(said["interfaces"])))
        elif said := _DEVICES.search(text):
            devices |= {each["name"]: Device(name=each["name"], kind=each["kind"]) for each in _DEVICE.finditer(text)}
        elif said := _NETWORK.search(text):
            transport = said["network"]
        elif said := _VIA.search(text):
            sent[said["transport"]] = sent.get(said["transport"], 0) + 1
        elif said := _SETTING.search(text):
            settings[said["name"]] = said["value"]
        elif said := _CHANNELS.search(text):
            found["channels"] = int(said["channels"])
        no_device, no_verbs = no_device or bool(_NONE.search(text)), no_verbs or bool(_NO_VERBS.search(text))
        if said := _NODES.search(text):
            found["nodes"] = int(said["nodes"])
        if said := _CHOICE.search(text):
            number_ = int(said["algorithm"] or 0)
            known = said["word"] or (_ALGORITHMS[number_] if number_ < len(_ALGORITHMS) else "")
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
        **found,  # type: ignore[arg-type]
    )
