"""Figures as files: one definition gives the interactive page, PNG, SVG and PDF."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

from scalescope.errors import UsageError
from scalescope.records.store import writing
from scalescope.text import inside_script, printable_json

FORMATS = ("html", "png", "svg", "pdf")
USUAL = ("html", "png")  # What is drawn unless others are asked for

_PAGE = """<!DOCTYPE html>
<html>
<head>
<meta charset="UTF-8">
<style>#vis.vega-embed {{ width: 100%; display: flex; }}</style>
<script type="text/javascript">
{script}
</script>
</head>
<body>
<div id="vis"></div>
<script type="text/javascript">
const spec = {spec};
vegaEmbed("#vis", spec, {{mode: "vega-lite"}}).catch(console.error);
</script>
</body>
</html>
"""


def check_formats(formats: Sequence[str]) -> None:
    """Refuse what cannot be drawn, before anything is."""
    for ending in formats:
        if ending not in FORMATS:
            raise UsageError(f"there is no picture format '{ending}': choose from {', '.join(FORMATS)}")


@cache
def start_renderer() -> None:
    """Start the renderer's JavaScript engine in the background: it takes as long as importing altair. Once."""
    if find_spec("altair") is None or find_spec("vl_convert") is None:
        return  # whoever draws says so
    import vl_convert

    empty = {"data": {"values": []}, "mark": "point"}
    Thread(target=vl_convert.vegalite_to_vega, args=(empty,), daemon=True).start()


def save_charts(drawn: Mapping[str, Any], folder: Path, formats: Sequence[str] = USUAL) -> list[Path]:
    """Save figures into the folder as NAME.FORMAT; the files."""
    written = []
    for name, chart in drawn.items():
        spec = chart.to_dict(validate=False)  # tests validate every figure; here it would take as long as drawing
        for ending in formats:
            path = folder / f"{name}.{ending}"
            with writing(path):
                folder.mkdir(parents=True, exist_ok=True)
                path.write_bytes(rendered(spec, ending))
            written.append(path)
    return written


def rendered(spec: dict[str, Any], ending: str) -> bytes:
    """A figure in one of the FORMATS."""
    import vl_convert
    from altair import SCHEMA_VERSION

    vega_lite = "_".join(SCHEMA_VERSION.split(".")[:2])
    if ending == "html":
        return _PAGE.format(script=vega_script(), spec=inside_script(spec)).encode()
    text = printable_json(spec)  # a control character in a name would end the process
    if ending == "png":
        return bytes(vl_convert.vegalite_to_png(text, vl_version=vega_lite, scale=2))
    if ending == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(text, vl_version=vega_lite))
    return str(vl_convert.vegalite_to_svg(text, vl_version=vega_lite)).encode()


@cache
def vega_script() -> str:
    """What a page needs to draw itself without the network; bundling takes seconds, so it is kept for the next time."""
    import vl_convert

    place = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "scalescope"
    kept = place / f"vega-{version('vl-convert-python')}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except OSError:
        script = str(vl_convert.javascript_bundle())  # type: ignore[call-arg]
    try:
        place.mkdir(parents=True, exist_ok=True)
        unfinished = place / f"{kept.name}.{os.getpid()}"
        unfinished.write_text(script, encoding="utf-8")
        unfinished.replace(kept)
    except OSError:
        pass  # a home that cannot be written to costs time only
    return script
