"""cluster.toml: a Cluster as a person writes it, with units, and as probe writes it; each mistake is one clear line."""

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from scalescope.errors import UsageError
from scalescope.records.cluster import BACKENDS, Algorithm, Cluster, Costs, Link, Operation, Overlap
from scalescope.records.store import writing
from scalescope.text import did_you_mean

RATES = {
    "B/s": Fraction(1),
    "KB/s": Fraction(10**3),
    "MB/s": Fraction(10**6),
    "GB/s": Fraction(10**9),
    "Kbit/s": Fraction(10**3, 8),
    "Mbit/s": Fraction(10**6, 8),
    "Gbit/s": Fraction(10**9, 8),
}  # Bytes per second of each unit
# Seconds of each unit; exact, so that 5 us is the number 5e-6.
TIMES = {"s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)}

_SETTINGS = tuple(name for name in Cluster.__struct_fields__ if name not in ("costs", "overlaps"))
_KEYS = {
    "": ("kind", *_SETTINGS, "overlap", "measured"),
    "inside": ("bandwidth", "latency"),
    "between": ("bandwidth", "latency"),
    "overlap": Overlap.__struct_fields__,
    "measured": Costs.__struct_fields__,
}
_Value = TypeVar("_Value")


def load_cluster(path: Path) -> Cluster:
    """The cluster that the file describes."""
    try:
        document = tomllib.loads(path.read_bytes().decode())
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror}: name a cluster.toml file") from None
    except (ValueError, RecursionError) as problem:  # tomllib has no error of its own for numbers without end
        raise UsageError(f"{path} is not TOML ({problem}): correct that place or name another file") from None
    top = _Table(path, "", "", document)
    top.check_header()
    inside, between = top.tables("inside", single=True), top.tables("between", single=True)
    overlaps, costs = top.tables("overlap"), top.tables("measured")
    return Cluster(
        name=top.take("name", _text, ""),
        nodes=top.take("nodes", _count),
        slots_per_node=top.take("slots_per_node", _count),
        cores_per_node=top.take("cores_per_node", _count),
        device=top.take("device", _one_of("cpu", "gpu"), "cpu"),
        inside=_link(inside[0]) if inside else None,
        between=_link(between[0]) if between else None,
        algorithm=top.take("algorithm", _one_of(*get_args(Algorithm)), "auto"),
        copy_s_per_byte=top.take("copy_s_per_byte", _number, 0.0),
        costs=_each_once(costs),
        overlaps=tuple(_overlap(table) for table in overlaps),
        threads_per_rank=top.take("threads_per_rank", _count, 1),
        disturbed=top.take("disturbed", _text, ""),
    )


def write_cluster(cluster: Cluster, path: Path) -> None:
    """Write the file whole or not at all; `load_cluster` gives back the same cluster."""
    plain: dict[str, Any] = {"kind": "cluster"}
    plain |= {name: getattr(cluster, name) for name in _SETTINGS}
    tables = [(f"[{name}]", _link_lines(plain.pop(name))) for name in ("inside", "between")]
    tables += [("[[overlap]]", msgspec.structs.asdict(overlap)) for overlap in cluster.overlaps]
    tables += [("[[measured]]", msgspec.structs.asdict(costs)) for costs in cluster.costs]
    lines = [*_lines(plain), *(line for head, table in tables if table for line in ("", head, *_lines(table)))]
    partial = path.with_name(path.name + ".partial")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            file.write(("\n".join(lines) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_toml(value)}" for key, value in table.items()]


def _toml(value: Any) -> str:
    if isinstance(value, str):  # JSON escapes as TOML does, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return repr(float(value)) if isinstance(value, float) else str(int(value))


def _link_lines(link: Link | None) -> dict[str, Any]:
    if link is None:
        return {}
    return {"bandwidth": _with_unit(link.bytes_per_s, RATES), "latency": _with_unit(link.latency_s, TIMES)}


def _with_unit(value: float, units: Mapping[str, Fraction]) -> str | float:
    """The shortest text that reads back as exactly this value; the bare number where there is none."""
    texts = [f"{value / scale:g} {unit}" for unit, scale in units.items()]
    exact = [text for text in texts if "e" not in text.split()[0] and _quantity(text, units) == value]
    return min(exact, key=len) if exact else float(value)


class _Table:
    """One table of the file; knows how to say what is wrong with a key of it."""

    def __init__(self, path: Path, head: str, name: str, content: Mapping[str, Any]) -> None:
        self._path, self._head, self._content = path, head, content
        for key in content:
            if key not in _KEYS[name]:
                near = did_you_mean(key, _KEYS[name])
                raise UsageError(f"{path}: {head}there is no key {_shown(key)}{near}: use {', '.join(_KEYS[name])}")

    def check_header(self) -> None:
        """Kind and version may be left out, but not be others."""
        kind, version = self._content.get("kind", "cluster"), self.take("version", _count, 1)
        if kind != "cluster":
            raise UsageError(f'{self._path} holds a {_shown(kind)}, not a "cluster": name a file of that kind')
        if version > Cluster.current_version:
            raise UsageError(
                f"{self._path} was written by a newer scalescope (format {version}, this one reads up to "
                f"{Cluster.current_version}): pip install --upgrade scalescope"
            )

    def take(self, key: str, read: Callable[[Any], _Value], default: _Value | None = None) -> _Value:
        """The key's value; `read` raises ValueError with what is expected."""
        if key not in self._content and default is not None:
            return default
        try:
            return read(self._content.get(key))
        except ValueError as expected:
            found = f"not {_shown(self._content[key])}" if key in self._content else "and it is missing"
            raise self.wrong(f"{key} must be {expected}, {found}") from None

    def tables(self, name: str, single: bool = False) -> "list[_Table]":
        """The tables under `[name]` or, several of them, `[[name]]`."""
        found = self._content.get(name, [])
        entries = [found] if single and name in self._content else found
        written = f"[{name}]" if single else f"[[{name}]]"
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise self.wrong(f"{name} must be a table, written {written}, not {_shown(found)}")
        heads = [f"[{name}] " if single else f"[[{name}]] number {number} " for number in range(1, len(entries) + 1)]
        return [_Table(self._path, head, name, entry) for head, entry in zip(heads, entries, strict=True)]

    def wrong(self, sentence: str) -> UsageError:
        """An error that names the file and the table."""
        return UsageError(f"{self._path}: {self._head}{sentence}")


def _link(table: _Table) -> Link:
    return Link(bytes_per_s=table.take("bandwidth", _rate), latency_s=table.take("latency", _time))


def _overlap(table: _Table) -> Overlap:
    return Overlap(
        backend=table.take("backend", _one_of(*BACKENDS)),
        ranks=table.take("ranks", _count),
        nodes=table.take("nodes", _count),
        compute=table.take("compute", _above_zero),
        communication=table.take("communication", _above_zero),
        waiting=table.take("waiting", _above_zero, 1.0),
        idle=table.take("idle", _above_zero, 1.0),
        idle_error=table.take("idle_error", _number, 0.0),
    )


def _costs(table: _Table) -> Costs:
    costs = Costs(
        backend=table.take("backend", _one_of(*BACKENDS)),
        operation=table.take("operation", _one_of(*get_args(Operation))),
        ranks=table.take("ranks", _count),
        nodes=table.take("nodes", _count),
        sizes_bytes=table.take("sizes_bytes", _list_of(_count)),
        seconds=table.take("seconds", _list_of(_above_zero)),
        cpu_seconds=table.take("cpu_seconds", _list_of(_number)),
        error=table.take("error", _number),
    )
    sizes = costs.sizes_bytes
    if list(sizes) != sorted(set(sizes)):
        raise table.wrong(f"sizes_bytes must ascend, not {_shown(list(sizes))}")
    for key in ("seconds", "cpu_seconds"):
        if (found := len(getattr(costs, key))) != len(sizes):
            raise table.wrong(f"{key} must hold one number for each of the {len(sizes)} sizes_bytes, not {found}")
    if costs.nodes > costs.ranks:
        raise table.wrong(f"nodes must be at most ranks, {costs.ranks}, not {costs.nodes}")
    return costs


def _each_once(tables: list[_Table]) -> tuple[Costs, ...]:
    found: dict[tuple[str, str, int, int], Costs] = {}
    for table in tables:
        costs = _costs(table)
        key = (costs.backend, costs.operation, costs.ranks, costs.nodes)
        if key in found:
            what = f"{costs.backend} {costs.operation} of {costs.ranks} ranks on {costs.nodes} nodes"
            raise table.wrong(f"must be another than the tables above, and {what} is there already: keep one of them")
        found[key] = costs
    return tuple(found.values())


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a whole number from 1")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError("a number from 0")
    return float(value)


def _above_zero(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError("a number above 0")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text in quotes")
    return value


def _one_of(*names: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return value

    return read


def _list_of(read: Callable[[Any], _Value]) -> Callable[[Any], tuple[_Value, ...]]:
    def read_all(value: Any) -> tuple[_Value, ...]:
        if not isinstance(value, list) or not value:
            raise ValueError("a list of numbers")
        try:
            return tuple(read(each) for each in value)
        except ValueError as expected:
            raise ValueError(f"a list, each {expected}") from None

    return read_all


def _rate(value: Any) -> float:
    rate = _quantity(value, RATES)
    if rate is None or not 0 < rate < math.inf:
        raise ValueError(f'a rate above 0 such as "200 Gbit/s" ({", ".join(RATES)}), or a number of bytes per second')
    return rate


def _time(value: Any) -> float:
    time = _quantity(value, TIMES)
    if time is None or not 0 <= time < math.inf:
        raise ValueError(f'a time from 0 such as "5 us" ({", ".join(TIMES)}), or a number of seconds')
    return time


def _quantity(value: Any, units: Mapping[str, Fraction]) -> float | None:
    """A bare number, or text of a number and a unit."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z/]+)\s*", value) if isinstance(value, str) else None
    return float(Fraction(match[1]) * units[match[2]]) if match and match[2] in units else None


def _shown(value: Any) -> str:
    """A value as TOML, short."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
