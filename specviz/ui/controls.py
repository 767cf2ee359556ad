"""The controls beside the race: one component for each setting, and a button for each preset.

Owns: labels, order and ranges of the components. Must not know runs, and handles nothing itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from specviz.config import CASCADE, DTYPES, MAX_DRAFT_LEN, MAX_DRAFTS, NUMERICS
from specviz.ui.offer import Offer
from specviz.ui.presets import KEPT, preset_values, presets, textbook
from specviz.ui.settings import DEFAULTS, ITSELF, MOST_NEW_TOKENS, NAMES


@dataclass
class Controls:
    """The components of all settings by name, and the buttons below them."""

    by_name: dict[str, Any] = field(default_factory=dict)
    run: Any = None
    stop: Any = None
    share: Any = None
    progress: Any = None

    @property
    def in_order(self) -> list[Any]:
        return [self.by_name[name] for name in NAMES]

    def add(self, name: str, component: Any) -> None:
        self.by_name[name] = component


def opening(offer: Offer) -> dict[str, Any]:
    """The values that all controls have when the page opens: those of the first preset."""
    found = presets(offer)
    chosen = {"target": offer.target, "draft": offer.draft}
    length = {"draft_len": offer.draft_lens.get(offer.draft, DEFAULTS["draft_len"])}
    return {**DEFAULTS, **chosen, **length, **(found[0]["settings"] if found else {})}


def build(offer: Offer) -> Controls:
    """All controls, in the Blocks that is being built."""
    controls, first = Controls(), opening(offer)
    controls.add("prompt", gr.Textbox(first["prompt"], label="Prompt", lines=3, max_lines=8, elem_id="prompt"))
    gr.HTML('<div class="sv-library"></div>', apply_default_css=False, js_on_load=None, elem_id="library")
    examples = presets(offer)
    with gr.Row(elem_classes="sv-presets"):
        buttons = [gr.Button(item["name"], size="sm", min_width=40) for item in examples if not item.get("case")]
    with gr.Row(elem_classes="sv-runrow"):
        controls.run = gr.Button("Run", variant="primary", elem_id="run", min_width=80)
        controls.stop = gr.Button("Stop", elem_id="stop", min_width=80)
    controls.progress = gr.HTML("", elem_id="progress", apply_default_css=False, js_on_load=None, min_height=0)
    cases = textbook(examples)
    if cases:
        gr.HTML("<h3>Textbook cases</h3>", apply_default_css=False, js_on_load=None, elem_classes="sv-caption")
        with gr.Row(elem_classes="sv-presets sv-cases"):
            buttons += [gr.Button(item["name"], size="sm", min_width=40) for item in cases]
    _main(controls, offer, first)
    with gr.Accordion("More settings", open=False):
        _more(controls, offer, first)
    with gr.Accordion("Copying", open=False):
        _copying(controls, first)
    controls.share = gr.Button("Link to these settings", size="sm", elem_id="share")
    in_order = [item for item in examples if not item.get("case")] + cases
    for button, item in zip(buttons, in_order, strict=True):
        _wire_preset(button, controls, preset_values(item["settings"]), is_case=item in cases)
    kept = [controls.by_name[name].input for name in KEPT]
    gr.on(kept, None, None, None, js="() => { window.svBefore = null; return []; }", api_visibility="private")
    return controls


def _main(controls: Controls, offer: Offer, first: dict[str, Any]) -> None:
    controls.add("draft", gr.Radio(list(offer.drafts), value=offer.draft, label="Draft", elem_id="draft"))
    with gr.Group():
        length = gr.Slider(
            1, MAX_DRAFT_LEN, value=first["draft_len"], step=1, label="Draft length γ",
            info="tokens guessed for each pass",
        )  # fmt: skip
        controls.add("draft_len", length)
        _wire_length(controls.by_name["draft"], length, offer)
        why = "the length that pays most by this run's own clock; a seed then fixes the law, not the trace"
        controls.add("auto", gr.Checkbox(first["auto"], label="auto", info=why))
    with gr.Accordion("Token tree and several drafts", open=False, elem_id="trees"):
        _trees(controls, offer, first)
    temperature = gr.Slider(
        0, 2, value=first["temperature"], step=0.05, label="Temperature", info="0 is greedy: always the best token"
    )
    controls.add("temperature", temperature)
    most = gr.Slider(1, MOST_NEW_TOKENS, value=first["max_new_tokens"], step=1, label="New tokens, at most")
    controls.add("max_new_tokens", most)
    seed = gr.Textbox(first["seed"] or "", label="Seed", placeholder="empty: a fresh one each run", max_lines=1)
    controls.add("seed", seed)


def _trees(controls: Controls, offer: Offer, first: dict[str, Any]) -> None:
    single = [name for _, name in offer.drafts if name not in ("", "none", ITSELF)]
    others = [name for name in single if not name.startswith(CASCADE)]
    group = gr.CheckboxGroup(
        others, value=first["more_drafts"], label="More drafts", elem_id="more-drafts",
        info=f"up to {MAX_DRAFTS - 1} beside the draft above; all guess into one tree",
    )  # fmt: skip
    controls.add("more_drafts", group)
    tree = gr.Textbox(
        first["tree"], label="Tree", max_lines=1, elem_id="tree", placeholder="empty: a chain of γ tokens",
        info="children per level, as in 3,2,1,1; auto grows where it pays, auto:N up to N nodes",
    )  # fmt: skip
    controls.add("tree", tree)
    rules = [("standard", "standard"), ("naive, a teaching rule", "naive")]
    why = "naive: draw the target's token first, then look whether it was guessed; the same law, fewer accepted"
    controls.add("rule", gr.Radio(rules, value=first["rule"], label="Rule", info=why, elem_id="rule"))


def _more(controls: Controls, offer: Offer, first: dict[str, Any]) -> None:
    controls.add("target", gr.Radio(list(offer.targets), value=offer.target, label="Target"))
    for kind, more in (("target", "or a .gguf file"), ("draft", "a .gguf file or a corpus")):
        box = gr.Textbox(
            "", label=f"Another {kind}", info=f"a Hub id, a folder, {more}; goes before the choice above",
            max_lines=1, visible=offer.any_name,
        )  # fmt: skip
        controls.add(f"{kind}_name", box)
    controls.add("top_k", gr.Number(first["top_k"], label="top-k", precision=0, info="0 is off"))
    controls.add("top_p", gr.Number(first["top_p"], label="top-p", info="1 is off"))
    penalty = gr.Number(first["repetition_penalty"], label="Repetition penalty", info="1 is off")
    controls.add("repetition_penalty", penalty)
    least = gr.Number(first["min_new_tokens"], label="New tokens, at least", precision=0)
    controls.add("min_new_tokens", least)
    controls.add("stop", gr.Textbox(first["stop"], label="Stop strings", info="one a line", lines=1, max_lines=6))
    controls.add("ignore_eos", gr.Checkbox(first["ignore_eos"], label="Go on past the end of text"))
    controls.add("raw", gr.Checkbox(first["raw"], label="Raw text, no chat template"))
    controls.add("baseline", gr.Checkbox(first["baseline"], label="Run the baseline beside it"))
    controls.add("dtype", gr.Radio(list(DTYPES), value=first["dtype"], label="Number format of the weights"))
    exact = "exact: on a CPU, a block of tokens gives the bits of single ones; fast: quicker, equal to rounding"
    controls.add("numerics", gr.Radio(list(NUMERICS), value=first["numerics"], label="Numerics", info=exact))


def _copying(controls: Controls, first: dict[str, Any]) -> None:
    """How the drafts copy that copy: references, lookup, a corpus."""
    least = gr.Number(first["min_match"], label="Minimum match", precision=0, info="tokens that must agree first")
    controls.add("min_match", least)
    how = "tokens copied for each pass; 0 is auto: as far as copies have held"
    controls.add("copy_len", gr.Number(first["copy_len"], label="Copy length", precision=0, info=how))
    names = {
        "references": "Copy from references",
        "prompt": "Copy from the prompt",
        "output": "Copy from the answer",
    }
    for name, label in names.items():
        controls.add(f"copy_{name}", gr.Checkbox(first[f"copy_{name}"], label=label))


def _wire_length(draft: gr.Radio, length: gr.Slider, offer: Offer) -> None:
    """Choosing a draft chooses the length it does best with, in the browser, with no request."""
    best = f"({json.dumps(dict(offer.draft_lens))})[name] ?? {DEFAULTS['draft_len']}"
    draft.input(None, [draft], [length], js=f"name => {best}", api_visibility="private")


def _wire_preset(button: gr.Button, controls: Controls, values: dict[str, Any], *, is_case: bool) -> None:
    """A preset fills the controls in the browser, with no request.

    What a textbook case changes of the kept settings is set back by the next preset that is none, unless the
    visitor has chosen something else meanwhile: else a story would be told with the draft that knows nothing.
    """
    kept, own = ([controls.by_name[name] for name in names] for names in (KEPT, values))
    texts = json.dumps(list(values.values()))
    if is_case:
        js, outputs = f"(...kept) => {{ window.svBefore ??= kept; return {texts}; }}", own
    else:
        back = "const back = window.svBefore ?? kept; window.svBefore = null;"
        js, outputs = f"(...kept) => {{ {back} return [...{texts}, ...back]; }}", [*own, *kept]
    button.click(None, kept, outputs, js=js, api_visibility="private")
