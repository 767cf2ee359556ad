"""The race as a component of the page, drawn by `assets/viz` from JSON deltas.

Owns: how the view gets on the page. Its template is constant and its value is a JSON text, so nothing a
model writes is ever read as HTML, JavaScript or template. Must not know runs or settings.

It is a plain `gr.HTML`: a subclass would add nothing, and gradio writes a stub file beside the source of
every subclass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from specviz.drafts.retrieval.reader import MAX_BYTES
from specviz.view.figures import figures
from specviz.view.numbers import definitions
from specviz.view.payload import FIELDS, as_text

ASSETS = Path(__file__).resolve().parents[2] / "assets"
TEMPLATE = '<div class="sv"></div>'


def script() -> str:
    """The sections of `assets/viz` in order, as one function body."""
    sections = sorted((ASSETS / "viz").glob("*.js"))
    return '"use strict";\n' + "\n".join(path.read_text(encoding="utf-8") for path in sections)


def stylesheet() -> str:
    """The sheets of the page, the one of the view first."""
    sheets = (ASSETS / name for name in ("viz.css", "references.css"))
    return "\n".join(path.read_text(encoding="utf-8") for path in sheets)


def plotly_script() -> Path:
    """The plotly wheel's own script, which the page loads from this server."""
    import plotly

    return Path(plotly.__file__).resolve().parent / "package_data" / "plotly.min.js"


def race_view(
    first: dict[str, Any] | None,
    answers: Sequence[Callable[[Any], Any]],
    *,
    settings: Sequence[str] = (),
    max_file_chars: int,
    sets: Sequence[dict[str, Any]] = (),
) -> gr.HTML:
    """The view of one run. Its value is one numbered delta as JSON text; see `specviz.view.payload`.

    `first` is shown on opening. `answers` are what the page may ask outside the queue, by function name; `sets`
    the bundled sets of references that the library offers. `settings` are the labels of the controls, so that the
    page can name those that have changed since a run.
    """
    plotly = plotly_script()
    gr.set_static_paths([plotly])
    still = {
        "fields": FIELDS,
        "numbers": definitions(),
        "figures": figures(),
        "plotly": plotly.as_posix(),
        "settings": list(settings),
        "max_file_chars": max_file_chars,
        "sets": list(sets),
        "max_reference_bytes": MAX_BYTES,
    }
    return gr.HTML(
        value=None if first is None else as_text(first),
        html_template=TEMPLATE,
        js_on_load=script(),
        apply_default_css=False,
        server_functions=[_as_function(answer) for answer in answers],
        elem_id="race",
        still=as_text(still),
    )


def _as_function(answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A plain function of one argument: gradio marks it, and a bound method cannot be marked."""

    def ask(request: Any) -> Any:
        return answer(request)

    ask.__name__ = answer.__name__
    return ask
