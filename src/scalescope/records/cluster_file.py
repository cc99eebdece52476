"""cluster.toml: a Cluster as a person writes it, with units, and as probe writes it; each mistake is one clear line."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from scalescope.errors import UsageError
from scalescope.named_paths import read_toml
from scalescope.records.cluster import Among, Cluster, Costs, Link, Overlap
from scalescope.records.store import check_header, write_whole
from scalescope.text import did_you_mean, plain
from scalescope.units import RATES, SIZES, TIMES, quantity

# Keys of the file whose fields have another name, those that take text with a unit, and those that are tables.
_FIELDS = {
    "measured": "costs",
    "overlap": "overlaps",
    "memory": "memory_bytes",
    "bandwidth": "bytes_per_s",
    "latency": "latency_s",
}
_KEYS = {field: key for key, field in _FIELDS.items()}
_UNITS = {"bandwidth": (RATES, "200 Gbit/s"), "latency": (TIMES, "5 us"), "memory": (SIZES, "80 GiB")}
_TABLES: dict[str, type[msgspec.Struct]] = {
    "inside": Link,
    "between": Link,
    "among": Among,
    "measured": Costs,
    "overlap": Overlap,
}


def load_cluster(path: Path) -> Cluster:
    """The cluster that the file describes.

    Raises:
        UsageError: It cannot be read, or something in it is wrong: one line that names the file and the place.
    """
    document = read_toml(path, "a cluster.toml, which scalescope probe -o FOLDER writes of a machine")
    check_header(document.pop("kind", "cluster"), document.get("version", 1), Cluster, str(path))
    try:
        return msgspec.convert(_as_fields(document, Cluster, ""), Cluster)
    except msgspec.ValidationError as problem:
        words = re.sub(r"\w+", lambda word: _KEYS.get(word[0], word[0]), str(problem).replace("`", ""))
        reason, _, place = words.partition(" - at $.")
        raise UsageError(f"{path}: {place}{': ' if place else ''}{plain(reason)}: correct it") from None
    except ValueError as problem:
        raise UsageError(f"{path}: {problem}") from None


def write_cluster(cluster: Cluster, path: Path) -> None:
    """Write the file whole or not at all; `load_cluster` gives back the same cluster."""
    import tomli_w

    text = tomli_w.dumps(_as_table(msgspec.to_builtins(cluster)))
    # Numbers of a list stand in one line; strings never span lines, so none is touched.
    text = re.sub(r"\[\n([-+.\deE,\s]+),\n\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    write_whole(path, text.encode())


def _as_fields(table: Mapping[str, Any], kind: type[msgspec.Struct], place: str) -> dict[str, Any]:
    """A table with the names and units of its record; ValueError where a key is unknown or a unit is wrong."""
    known = [_KEYS.get(field, field) for field in kind.__struct_fields__]
    fields: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            near = did_you_mean(key, known)
            raise ValueError(f"{place}there is no key {plain(json.dumps(key), 60)}{near}: use {', '.join(known)}")
        if key in _TABLES:
            tables = value if isinstance(value, list) else [value]
            read = [_as_fields(each, _TABLES[key], f"{key}: ") if isinstance(each, dict) else each for each in tables]
            value = read if isinstance(value, list) else read[0]
        elif key in _UNITS and isinstance(value, str):
            units, example = _UNITS[key]
            if (number := quantity(value, units)) is None:
                raise ValueError(
                    f'{place}{key}: expected a number and a unit ({", ".join(units)}) such as "{example}", not '
                    f'"{plain(value, 60)}"'
                )
            value = round(number) if key == "memory" else number
        fields[_FIELDS.get(key, key)] = value
    return fields


def _as_table(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The other way round, without what is not there."""
    table: dict[str, Any] = {}
    for field, value in fields.items():
        if isinstance(value, dict):
            value = _as_table(value)
        elif isinstance(value, list | tuple):
            value = [_as_table(each) if isinstance(each, dict) else each for each in value]
        if value is not None and value != []:
            table[_KEYS.get(field, field)] = value
    return table
