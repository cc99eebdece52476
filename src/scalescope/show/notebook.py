"""Documents in a notebook: the answer and the most telling figures, as pictures, so that no script runs."""

import base64
from html import escape
from itertools import islice
from typing import Any

from scalescope.errors import WorkFailed
from scalescope.show.document import Document, spec_of
from scalescope.text import clean

_MOST_FIGURES = 3


def as_html(document: Document) -> str:
    """Render a result for Jupyter."""
    parts = [f"<p><strong>{_text(document.answer)}</strong></p>"]
    if document.reasons:
        parts.append("<ul>" + "".join(f"<li>{_text(line)}</li>" for line in document.reasons) + "</ul>")
    parts += [f"<p>Warning: {_text(warning)}</p>" for warning in document.warnings]
    parts += [f"<p>Do: <code>{_text(document.do)}</code></p>"] if document.do else []
    try:
        parts += islice(_pictures(document), _MOST_FIGURES)
    except WorkFailed as problem:
        parts.append(f"<p>No figures: {_text(str(problem))}</p>")
    return f"<div>{''.join(parts)}</div>"


def _text(text: str) -> str:
    return escape(clean(text))


def _pictures(document: Document) -> Any:
    from scalescope.show.charts.saving import rendered

    for figure in document.figures:
        if spec := spec_of(figure):
            picture = base64.b64encode(rendered(spec, "svg")).decode()
            yield f'<p><img alt="{escape(figure.name)}" src="data:image/svg+xml;base64,{picture}"></p>'
