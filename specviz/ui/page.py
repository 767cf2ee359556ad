"""The page: header, controls, the race, and what each button does.

Owns: layout and wiring. Must not know how a run is decoded or drawn. Everything that opens the page gets the
same first state; what belongs to one visitor lives in that visitor's browser or under an unguessable run id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.ui import controls as panel
from specviz.ui.api import Api
from specviz.ui.component import race_view, stylesheet
from specviz.ui.controls import Controls
from specviz.ui.keep import MAX_CHARS, Keep
from specviz.ui.library import Libraries
from specviz.ui.links import Links
from specviz.ui.offer import Offer
from specviz.ui.recordings import Recording
from specviz.ui.runs import Runs, Worker

if TYPE_CHECKING:
    from specviz.run import Prepare

MAX_WAITING = 16
DEFAULT_OFFER = Offer(
    targets=(("default target", ""),),
    drafts=(("default draft", ""), ("prompt lookup", "lookup"), ("none", "none")),
    target="",
    draft="",
)
TITLE = "specviz: see speculative decoding"
INTRO = """
<div class="sv-head">
  <h1>specviz</h1>
  <p>A small <b>draft</b> guesses the next tokens; the large <b>target</b> checks them all in one pass and keeps
  only what it would have said itself.</p>
</div>
"""

# The page chooses the id of its run, so that Stop can name it before anything has come back.
VIEW = "document.querySelector('.sv')?.svView"
TAKE_TICKET = f"""(...values) => {{
  values[0] = {VIEW}?.pressed(values.slice(1)) ?? "";
  return values;
}}"""
ENTER = """() => {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  window.svVisitor = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [window.svVisitor];
}"""
ENTERED = "() => { window.svEntered = true; return []; }"
SHOW_TICKET = f"() => [{VIEW}?.buttons.stopPressed() ?? '']"
OVER = f"() => {{ {VIEW}?.buttons.over(); return []; }}"
# A run that goes on is left to end by itself, so that its last delta comes; one that waits leaves the queue.
DROP = f"""(waiting) => {{
  if (waiting) {{
    document.getElementById("drop").click();
    {VIEW}?.buttons.over();
  }}
  return [];
}}"""
SHOW_LINK = f"(query, cut) => {{ {VIEW}?.showLink(query, cut); return []; }}"
# Gradio tells of controls before the race is there, too.
TELL_SETTINGS = f"(...values) => {{ window.svSettings = values; {VIEW}?.settings(values); return []; }}"


def build_app(
    prepare: Prepare,
    *,
    offer: Offer = DEFAULT_OFFER,
    recordings: Sequence[Recording] = (),
    gpu: Callable[[Worker], Worker] | None = None,
    max_file_chars: int = MAX_CHARS,
) -> gr.Blocks:
    """The whole page over an engine. The first of `recordings` plays on opening."""
    runs = Runs(prepare, gpu=gpu, names=None if offer.any_name else offer.names, corpora=offer.corpora)
    keep = Keep(runs.journal, recordings, max_chars=max_file_chars)
    app: gr.Blocks = gr.Blocks(title=TITLE, analytics_enabled=False)
    with app:
        gr.HTML(INTRO, apply_default_css=False, js_on_load=None, elem_id="head")
        with gr.Row(elem_classes="sv-layout"):
            with gr.Column(scale=0, min_width=280, elem_classes="sv-controls"):
                controls = panel.build(offer)
            with gr.Column(scale=1, min_width=320, elem_classes="sv-main"):
                answers = [runs.missing, keep.export, keep.open_trace, keep.reference, runs.libraries.library]
                labels = [str(control.label) for control in controls.in_order]
                view = race_view(
                    keep.opening(),
                    answers,
                    settings=labels,
                    max_file_chars=max_file_chars,
                    sets=runs.libraries.sets,
                )
        _wire_run(app, runs, controls, view)
        _wire_settings(app, controls)
        _wire_link(app, Links(offer), controls)
        _wire_library(app, runs.libraries)
        Api(runs).publish(app)
    app.queue(max_size=MAX_WAITING)
    return app


def launch_options() -> dict[str, Any]:
    """What `launch` needs so that the page looks and behaves as meant."""
    fonts = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
    mono = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
    theme = gr.themes.Base(primary_hue="slate", neutral_hue="slate", radius_size="md", font=fonts, font_mono=mono)
    return {
        "theme": theme,
        "css": stylesheet(),
        "ssr_mode": False,
        "run_history": False,
        "footer_links": ["api"],
        "show_error": True,
    }


def _wire_run(app: gr.Blocks, runs: Runs, controls: Controls, view: gr.HTML) -> None:
    ticket = gr.Textbox(visible=False, label="ticket")
    running = gr.on(
        [controls.run.click, controls.by_name["prompt"].submit],
        runs.generate,
        [ticket, *controls.in_order],
        [view],
        js=TAKE_TICKET,
        show_progress="full",
        show_progress_on=[controls.progress],
        concurrency_id="model",
        concurrency_limit=1,
        trigger_mode="once",
        api_name="run",
        api_visibility="private",
    )
    running.then(None, None, None, js=OVER, api_visibility="private")
    waiting = gr.Checkbox(visible=False, label="waiting")
    drop = gr.Button(visible="hidden", elem_id="drop")
    drop.click(None, None, None, cancels=[running], api_visibility="private")
    controls.stop.click(
        runs.stop,
        [ticket],
        [waiting],
        js=SHOW_TICKET,
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    ).then(None, [waiting], None, js=DROP, api_visibility="private")
    app.unload(runs.leave)


def _wire_library(app: gr.Blocks, libraries: Libraries) -> None:
    """A page that opens names itself, so that what it brings belongs to it alone."""
    key = gr.Textbox(visible=False, label="visitor")
    app.load(
        libraries.enter,
        [key],
        None,
        js=ENTER,
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    ).then(None, None, None, js=ENTERED, api_visibility="private")


def _wire_settings(app: gr.Blocks, controls: Controls) -> None:
    """The page hears of every change of a control, in the browser, with no request."""
    changes = [control.change for control in controls.in_order]
    gr.on([app.load, *changes], None, controls.in_order, None, js=TELL_SETTINGS, api_visibility="private")


def _wire_link(app: gr.Blocks, links: Links, controls: Controls) -> None:
    """A link fills the controls and starts nothing; it is made of the controls as they are."""
    query = gr.Textbox(visible=False, label="link")
    cut = gr.Checkbox(visible=False, label="cut")
    quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    app.load(links.restore, None, controls.in_order, **quiet)
    controls.share.click(links.make, controls.in_order, [query, cut], **quiet).then(
        None, [query, cut], None, js=SHOW_LINK, api_visibility="private"
    )
