"""The network: sockets where InfiniBand is there, or another link than the fastest one."""

from typing import Literal

from scalescope.diagnosis.findings.case import NOTEWORTHY, Case, sent_s
from scalescope.diagnosis.replay import USUAL_BYTES_PER_S, gain
from scalescope.engines import engine_named
from scalescope.records.explanation import Finding, Network
from scalescope.text import listed
from scalescope.units import format_bits, format_share

# AReaL issue 639: an allreduce of 1 GB takes about 50 ms over RoCE and 370 ms over sockets, 25 and 5 GB/s on the bus.
_SOCKETS_COST = 5.0
_ASKED = "NCCL_IB_HCA asks for InfiniBand"
_OF_LINE_RATE = 0.8  # What large messages reach of an InfiniBand port's rate
_CLEARLY = 1.3  # Times by which another link must be faster
_MOST = 100.0  # No step is replayed with links more than this many times as fast


def slow_network(case: Case) -> Finding | None:
    """Messages go over a slower network than hosts have."""
    network = case.explanation.network
    if network is None:
        return None
    return _sockets(case, network) or _slower_link(case, network)


def _sockets(case: Case, network: Network) -> Finding | None:
    """NCCL talks over sockets although there is InfiniBand or RoCE."""
    if network.backend != "nccl" or network.transport.lower() != "socket":
        return None
    settings = network.settings
    devices = [f"{each.name} ({each.kind})" for each in network.devices]
    over_ib = [name for name in network.interfaces if name.startswith("ib")]
    wanted = settings.get("NCCL_IB_HCA", "") if network.no_device else ""
    if not devices and not over_ib and not wanted:
        return None  # nothing says that there is another network
    kinds = listed(sorted({each.kind.replace("IB", "InfiniBand") for each in network.devices} or {"InfiniBand"}))
    no_verbs = "it cannot load libibverbs" if network.no_verbs else ""
    seen = {
        "InfiniBand or RoCE ports": ", ".join(devices),
        "interfaces of InfiniBand": ", ".join(over_ib),
        "asked for": f"NCCL_IB_HCA={wanted}" if wanted else "",
        "NCCL says": "it found no device" if network.no_device else no_verbs,
        "sockets on": ", ".join(network.interfaces),
        "elsewhere": "allreduce of 1 GB: 370 ms over sockets, about 50 ms over RoCE (AReaL issue 639)",
    }
    # Times by which InfiniBand is faster than sockets were in this trace; as seen elsewhere where that is not told.
    port = max((each.bits_per_s for each in network.devices), default=0.0)
    bus = max((each.bus_bytes_per_s for each in case.explanation.transfers), default=0.0)
    speed = max(_OF_LINE_RATE * port / (8 * bus), 1.0) if port and bus else _SOCKETS_COST
    won, source = _gain(case, speed)
    return Finding(
        id="slow_network",
        sentence=f"NCCL talks over sockets although {f'{kinds} is there' if devices or over_ib else _ASKED}.",
        evidence={name: value for name, value in seen.items() if value},
        change=_nccl_change(network, bool(wanted)),
        gain=won,
        gain_from=source,
        parts=(case.part("transfer"),),
    )


def _nccl_change(network: Network, wanted: bool) -> str:
    settings = network.settings
    if settings.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        return "NCCL_IB_DISABLE=0 in the environment of every rank, or unset it."
    if settings.get("NCCL_NET", "").lower() == "socket":
        return "unset NCCL_NET, which asks for sockets."
    if network.no_verbs:
        return (
            "Install libibverbs (Debian: libibverbs1, ibverbs-providers) where ranks run, such as in their container."
        )
    if wanted and not network.devices:
        return (
            f"unset NCCL_IB_HCA={settings['NCCL_IB_HCA']}, or name what ibv_devices lists where the ranks run; in a "
            "container that lists none: --device /dev/infiniband --ulimit memlock=-1."
        )
    return "NCCL_NET=IB, so that NCCL says why it cannot; in a container: --device /dev/infiniband --ulimit memlock=-1."


def _slower_link(case: Case, network: Network) -> Finding | None:
    """Messages go over one IP network, and another one that all hosts have is faster."""
    known = {link.interface: link for link in network.links if link.bits_per_s}
    used = next((known[name] for name in network.interfaces if name in known), None)
    if used is None:
        return None
    best = max(known.values(), key=lambda link: link.bits_per_s)
    if bool(best.measured_bits_per_s) != bool(used.measured_bits_per_s):
        return None  # a promise and a measurement cannot be compared
    times = best.bits_per_s / used.bits_per_s
    if times < _CLEARLY:
        return None
    seen = max((each.bus_bytes_per_s for each in case.explanation.transfers), default=0.0)
    room = USUAL_BYTES_PER_S.get(network.backend, 1e9) / seen if seen else times
    won, source = _gain(case, min(times, max(room, 1.0)))
    if case.step_s and (won is None or won < NOTEWORTHY):
        return None
    how = "one TCP connection after the training" if best.measured_bits_per_s else "as drivers tell"
    settings = engine_named(case.explanation.engine).interfaces
    setting = settings.get(network.backend, "choose the interface {name}").format(name=best.interface)
    all_bytes = sum(each.sent_bytes for each in network.links)
    return Finding(
        id="slow_network",
        sentence=f"Messages go over {used.interface} ({format_bits(used.bits_per_s)}) although {best.interface} is "
        f"{times:.1f} times as fast ({format_bits(best.bits_per_s)}).",
        evidence={
            **{f"{link.interface}, {link.network}": format_bits(link.bits_per_s) for link in known.values()},
            "known from": how,
            f"sent over {used.interface}": format_share(used.sent_bytes / max(all_bytes, 1)),
        },
        change=f"{setting}, for every rank.",
        gain=won,
        gain_from=source,
        parts=(case.part("transfer"),),
    )


def _gain(case: Case, speed: float) -> tuple[float | None, Literal["replay", "accounting", ""]]:
    """Gain of links `speed` times as fast, and its source: the replay, or the time in transfers; None: not known."""
    if case.replay is not None:
        return gain(case.replay.step_s, case.replay.with_links(min(speed, _MOST))), "replay"
    accounting = case.explanation.accounting
    if accounting is None or not case.step_s:
        return None, ""
    return case.saving(sent_s(accounting) * (1 - 1 / speed)), "accounting"
