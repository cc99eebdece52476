"""cluster.toml: a Cluster as a person writes it, with units, and as probe writes it; each mistake is one clear line."""

import json
import math
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import msgspec

from scalescope.errors import UsageError
from scalescope.named_paths import read_toml
from scalescope.records.cluster import BACKENDS, Algorithm, Among, Cluster, Costs, Device, Gpu, Operation, Overlap
from scalescope.records.store import check_header, write_whole
from scalescope.text import did_you_mean, plain
from scalescope.units import RATES, SIZES, TIMES, quantity

# Fields that have another name in the file: links are written with units, tables are named in the singular.
_LINK = {"bytes_per_s": ("bandwidth", RATES), "latency_s": ("latency", TIMES)}
_LINKS = ("inside", "between")
_TABLES = {"costs": "measured", "overlaps": "overlap", "among": "among"}
_MEMORY = ("memory_bytes", "memory")
_NAMES = {**_TABLES, **{field: name for field, (name, _) in _LINK.items()}, **dict([_MEMORY])}
_CHOICES = {
    "device": get_args(Device),
    "gpu": get_args(Gpu),
    "algorithm": get_args(Algorithm),
    "backend": BACKENDS,
    "operation": get_args(Operation),
}
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "array": "a list",
    "object": "a table",
    "object | null": "a table",
}
_KEYS = {
    "": ("kind", *(_NAMES.get(field, field) for field in Cluster.__struct_fields__)),
    **dict.fromkeys(_LINKS, ("bandwidth", "latency")),
    "overlap": Overlap.__struct_fields__,
    "among": tuple(_NAMES.get(field, field) for field in Among.__struct_fields__),
    "measured": Costs.__struct_fields__,
}


def load_cluster(path: Path) -> Cluster:
    """The cluster that the file describes.

    Raises:
        UsageError: It cannot be read, or something in it is wrong: one line that names the file and the place.
    """
    document = read_toml(path, "a cluster.toml, which scalescope probe -o FOLDER writes of a machine")
    check_header(document.get("kind", "cluster"), document.get("version", 1), Cluster, str(path))
    try:
        fields = _as_fields(document)
        return msgspec.convert(fields, Cluster)
    except msgspec.ValidationError as problem:
        raise UsageError(f"{path}: {_in_words(str(problem), fields)}") from None
    except ValueError as problem:
        raise UsageError(f"{path}: {problem}") from None


def write_cluster(cluster: Cluster, path: Path) -> None:
    """Write the file whole or not at all; `load_cluster` gives back the same cluster."""
    import tomli_w

    document: dict[str, Any] = {"kind": "cluster"}
    for field, value in msgspec.to_builtins(cluster).items():
        if field in _LINKS and value:
            value = _with_units(value)
        if field == "among":
            value = [_with_units(each) for each in value]
        if field == _MEMORY[0]:
            value = _with_unit(value, SIZES) if value else None
        if value is not None and (value or field not in _TABLES):
            document[_NAMES.get(field, field)] = value
    text = tomli_w.dumps(document)
    # Numbers of a list stand in one line; strings never span lines, so none is touched.
    text = re.sub(r"\[\n([-+.\deE,\s]+),\n\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    write_whole(path, text.encode())


def _as_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the names and units of the record; ValueError where a key is unknown or a unit is wrong."""
    _check_keys(document, "", "")
    fields = dict(document)
    for name in _LINKS:
        if isinstance(document.get(name), dict):
            _check_keys(document[name], name, f"[{name}] ")
            fields[name] = _without_units(document[name])
    field, name = _MEMORY
    if name in document:
        size = _number(fields.pop(name), name, SIZES)
        fields[field] = round(size) if isinstance(size, float) and math.isfinite(size) else size
    for field, name in _TABLES.items():
        if name in document:
            fields[field] = tables = fields.pop(name)
            for number, table in enumerate(tables if isinstance(tables, list) else (), 1):
                _check_keys(table if isinstance(table, dict) else {}, name, f"[[{name}]] number {number}: ")
    if isinstance(fields.get("among"), list):
        fields["among"] = [_without_units(each) if isinstance(each, dict) else each for each in fields["among"]]
    return fields


def _without_units(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of the file with the record's names, and numbers instead of texts with units."""
    fields = dict(table)
    for field, (key, units) in _LINK.items():
        if key in fields:
            fields[field] = _number(fields.pop(key), key, units)
    return fields


def _with_units(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The other way round."""
    table = {_NAMES.get(field, field): value for field, value in fields.items()}
    for key, units in _LINK.values():
        if key in table:
            table[key] = _with_unit(table[key], units)
    return table


def _check_keys(table: Mapping[str, Any], name: str, head: str) -> None:
    for key in table:
        if key not in _KEYS[name]:
            near = did_you_mean(key, _KEYS[name])
            raise ValueError(f"{head}there is no key {_shown(key)}{near}: use {', '.join(_KEYS[name])}")


def _number(value: Any, key: str, units: Mapping[str, Fraction]) -> Any:
    """The number that a text with a unit stands for; what is no text as it is."""
    if not isinstance(value, str):
        return value
    number = quantity(value, units)
    if number is None:
        example = "200 Gbit/s" if units is RATES else "80 GiB" if units is SIZES else "5 us"
        raise ValueError(f'{key}: expected a number and a unit ({", ".join(units)}) such as "{example}", not "{value}"')
    return number


def _with_unit(value: float, units: Mapping[str, Fraction]) -> str | float:
    """The shortest text that reads back as exactly this value; the bare number where there is none."""
    texts = [f"{value / scale:g} {unit}" for unit, scale in units.items()]
    exact = [text for text in texts if "e" not in text.split()[0] and quantity(text, units) == value]
    return min(exact, key=len) if exact else float(value)


def _in_words(problem: str, fields: Any) -> str:
    """Say msgspec's complaint in the file's words: `[[measured]] number 2: ranks: expected a list, not 0`."""
    reason, _, where = problem.partition(" - at `$")
    keys = re.findall(r"\w+", where)
    value = fields
    for key in keys:
        value = value[int(key) if key.isdigit() else key]
    place = ""
    if keys and keys[0] in _TABLES and len(keys) > 1:
        place = f"[[{_TABLES[keys.pop(0)]}]] number {int(keys.pop(0)) + 1}: "
    elif keys and keys[0] in _LINKS and isinstance(fields[keys[0]], dict):
        place = f"[{keys.pop(0)}] "
    name = _NAMES.get(keys[0], keys[0]) if keys else ""
    if reason.startswith(("Invalid enum value", "Expected `str` matching")):
        reason = f"expected one of {', '.join(_CHOICES[name])}"
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", reason):
        return f"{place}{_NAMES.get(missing[1], missing[1])} is missing: add it"
    if not name:
        return place + reason
    reason = re.sub(r"`([\w |]+)`", lambda match: _WORDS.get(match[1], match[1]), reason.partition(", got ")[0])
    return f"{place}{name}: {reason[0].lower()}{reason[1:]}, not {_shown(value)}"


def _shown(value: Any) -> str:
    return plain(json.dumps(value, default=str, ensure_ascii=False), 60)
