"""Figures as files: one definition gives the interactive page, PNG, SVG and PDF."""

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from scalescope.errors import UsageError, WorkFailed
from scalescope.records.request import FORMATS, USUAL_FORMATS
from scalescope.records.store import write_whole
from scalescope.text import inside_script, plain, printable_json

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


class Renderer:
    """The process that draws, as `renderer.py` describes: when it dies, this one does not."""

    def __init__(self) -> None:
        found = find_spec("vl_convert")
        if found is None or found.origin is None:
            raise ModuleNotFoundError("No module named 'vl_convert'", name="vl_convert")
        program = Path(__file__).with_name("renderer.py")
        self.process = subprocess.Popen(
            # without site and the environment's paths: no code of others runs there, and it starts sooner
            [sys.executable, "-I", "-S", str(program), str(Path(found.origin).parents[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a native stack helps nobody
            process_group=0,  # Ctrl-C is for the process that asks, which ends this one
        )
        self._lock = Lock()
        atexit.register(self.end)

    def ask(self, what: str, text: str = "") -> bytes:
        """One thing drawn.

        Raises:
            WorkFailed: It cannot be drawn, or the process died.
        """
        from altair import SCHEMA_VERSION

        assert self.process.stdin
        assert self.process.stdout
        vega_lite = "_".join(SCHEMA_VERSION.split(".")[:2])
        with self._lock:
            try:
                self.process.stdin.write(json.dumps([what, text, vega_lite]).encode() + b"\n")
                self.process.stdin.flush()
                size = self.process.stdout.readline()
                answer = self.process.stdout.read(abs(int(size)))
            except (BrokenPipeError, ValueError):
                self.end()
                raise WorkFailed(_why_it_died(self.process.wait())) from None
            except BaseException:  # interrupted: an answer that is still to come would be taken for the next one
                self.end()
                raise
        if size.startswith(b"-"):
            raise WorkFailed(f"a figure cannot be drawn ({plain(answer.decode())}): choose --formats html")
        return answer

    def end(self) -> None:
        """End the process; the next drawing starts another one."""
        renderer.cache_clear()
        atexit.unregister(self.end)
        self.process.kill()
        self.process.wait()


def _why_it_died(code: int) -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        return (
            f"the drawing engine does not fit into the address space that is allowed (ulimit -v {limit // 1024}): "
            "raise the limit"
        )
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"the drawing engine {how}: free some memory"


@cache
def renderer(process: int) -> Renderer:
    """The renderer of a process; a fork has one of its own."""
    return Renderer()


def start_renderer() -> None:
    """Start the process that draws, while this one imports altair or reads files."""
    if find_spec("altair") is not None and find_spec("vl_convert") is not None:  # otherwise whoever draws says so
        renderer(os.getpid())


def save_charts(
    specs: Mapping[str, dict[str, Any]], folder: Path, formats: Sequence[str] = USUAL_FORMATS
) -> list[Path]:
    """Save figures into the folder as NAME.FORMAT, all or none where the engine fails; the files."""
    contents = {
        folder / f"{name}.{ending}": rendered(spec, ending) for name, spec in specs.items() for ending in formats
    }
    for path, content in contents.items():
        write_whole(path, content)
    return list(contents)


def rendered(spec: dict[str, Any], ending: str) -> bytes:
    """A figure in one of the FORMATS."""
    if ending == "html":
        return _PAGE.format(script=vega_script(), spec=inside_script(spec)).encode()
    return renderer(os.getpid()).ask(ending, printable_json(spec))  # a control character would end the renderer


@cache
def vega_script() -> str:
    """Script with which a page draws itself without the network; bundling takes seconds, so it is kept."""
    from importlib.metadata import version  # slow to import, and needed here alone

    place = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "scalescope"
    kept = place / f"vega-{version('vl-convert-python')}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except OSError:
        script = renderer(os.getpid()).ask("script").decode()
    own = place / f"{kept.name}.{os.getpid()}"  # another process may be bundling as well
    with suppress(WorkFailed, OSError):  # a home that cannot be written to costs time only
        write_whole(own, script.encode())
        own.replace(kept)
    return script
