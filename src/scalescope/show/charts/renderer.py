"""The process that draws: vl-convert's V8 ends the process it is in when memory or address space runs out.

`saving.py` starts this file as a program of its own, with the folder of vl-convert as argument. A request is one line
of JSON, the answer a line with its length and then its bytes; a length below zero announces the text of an error.
"""

import json
import resource
import sys
from typing import Any

_EMPTY = '{"data": {"values": []}, "mark": "point"}'


def serve() -> None:
    """Draw what is asked for until the input ends, as it does when the process that asks has ended."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # V8 ends in a trap, which would leave a core file
    import vl_convert

    vl_convert.vegalite_to_vega(_EMPTY)  # starting V8 takes as long as importing altair does in the other process
    for line in sys.stdin.buffer:
        try:
            answer, sign = drawn(vl_convert, *json.loads(line)), ""
        except BaseException as problem:  # a panic in Rust is no Exception
            answer, sign = str(problem).encode(), "-"
        sys.stdout.buffer.write(f"{sign}{len(answer)}\n".encode() + answer)
        sys.stdout.buffer.flush()


def drawn(vl_convert: Any, what: str, text: str, vega_lite: str) -> bytes:
    """A figure as png, pdf or svg, or the script with which a page draws itself."""
    if what == "png":
        return bytes(vl_convert.vegalite_to_png(text, vl_version=vega_lite, scale=2))
    if what == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(text, vl_version=vega_lite))
    if what == "svg":
        return str(vl_convert.vegalite_to_svg(text, vl_version=vega_lite)).encode()
    return str(vl_convert.javascript_bundle()).encode()


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    serve()
