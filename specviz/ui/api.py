"""The stream of step events as a public endpoint, for `gradio_client` and plain REST.

Owns: the signature of `/generate`, its labels, and the shape of what it yields. Must not know layout: it goes
through the same `Runs` as the page, so a call waits its turn and may name the same models.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Literal

import gradio as gr
from gradio import events

from specviz.errors import SpecvizError
from specviz.metrics import Tally, summarize
from specviz.text import Detokenizer
from specviz.trace import Lane, Step, event_to_json
from specviz.ui.runs import Runs

LABELS = {
    "prompt": "Prompt",
    "target": "Target: a name of the catalog; empty for the default",
    "draft": "Draft: a name of the catalog, lookup or none; empty for the default",
    "draft_len": 'Draft length γ, 1 to 32, or "auto"',
    "temperature": "Temperature, 0 is greedy",
    "top_k": "top-k, 0 is off",
    "top_p": "top-p, 1 is off",
    "repetition_penalty": "Repetition penalty, 1 is off",
    "stop": "Stop strings",
    "min_new_tokens": "New tokens, at least",
    "max_new_tokens": "New tokens, at most",
    "ignore_eos": "Go on past the end of text",
    "seed": "Seed; null draws a fresh one",
    "raw": "Raw text, no chat template",
    "baseline": "Run the baseline beside it",
    "more_drafts": "Up to three drafts more, which guess into the same tree",
    "tree": "Tree in place of a chain: children per level, as in 3,2,1,1, or auto, or auto:N; empty for a chain",
    "rule": "Rule: standard, or naive, a teaching rule (the same law, fewer accepted)",
}
DESCRIPTION = (
    "Decode a prompt with a draft and, beside it, without. Yields objects in order: first `config` and "
    "`versions`; then `events`, by their number in the run (each a started, step or finished event of the trace "
    "format, of either lane), with `text`, what they added to each lane; last `summary`, the numbers of the run."
)
YIELDS = {
    "type": "object",
    "properties": {
        "config": {"type": "object", "additionalProperties": {}},
        "versions": {"type": "object", "additionalProperties": {"type": "string"}},
        "events": {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": {}}},
        "text": {"type": "object", "additionalProperties": {"type": "string"}},
        "summary": {"type": "object", "additionalProperties": {}},
    },
}


class Api:
    """The public endpoint over `runs`."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def publish(self, app: gr.Blocks) -> None:
        """Add `/generate` to the Blocks being built. It shares the one place in the queue for models."""
        events.api(
            self.generate,
            api_name="generate",
            api_description=DESCRIPTION,
            concurrency_id="model",
            concurrency_limit=1,
        )
        handler: Any = next(fn for fn in app.fns.values() if fn.api_name == "generate")
        for component, label in zip(handler.inputs, LABELS.values(), strict=True):
            component.label = label
        handler.outputs[0].label = "Step events"
        handler.outputs[0]._api_info = YIELDS

    def generate(
        self,
        prompt: str,
        target: str = "",
        draft: str = "",
        draft_len: int | Literal["auto"] = 4,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        stop: list[str] | None = None,
        min_new_tokens: int = 0,
        max_new_tokens: int = 96,
        ignore_eos: bool = False,
        seed: int | None = None,
        raw: bool = False,
        baseline: bool = True,
        more_drafts: list[str] | None = None,
        tree: str = "",
        rule: str = "standard",
    ) -> Iterator[dict[str, Any]]:
        """See `DESCRIPTION`. What cannot be run is a `gr.Error` of one sentence."""
        settings = {name: value for name, value in locals().items() if name in LABELS}
        settings |= {"drafts": [name for name in (draft, *(more_drafts or [])) if name], "stop": stop or []}
        del settings["draft"], settings["more_drafts"]
        record = self._runs.journal.open()
        try:
            with closing(self._runs.batches(settings, record)) as batches:
                yield from _answers(batches)
        except SpecvizError as error:
            raise gr.Error(str(error), print_exception=False) from None
        finally:
            self._runs.journal.forget(record)


def _answers(batches: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Batches of the worker as JSON values.

    Events are keyed by number: gradio sends differences between yields, and those of two unlike lists of
    lists its client cannot put together again.
    """
    tally = Tally()
    count = 0
    pieces: dict[int, Any] = {}
    readers: dict[Lane, Detokenizer] = {"speculative": Detokenizer(), "baseline": Detokenizer()}
    for batch in batches:
        if "error" in batch:
            raise SpecvizError(batch["error"])
        if "config" in batch:
            tally.config = dict(batch["config"])
            yield {"config": batch["config"], "versions": batch["versions"]}
            continue
        pieces |= batch["pieces"]
        text: dict[Lane, str] = {}
        for event in batch["events"]:
            tally.add(event)
            if isinstance(event, Step):
                added = "".join(readers[event.lane].push(pieces[token_id]) for token_id in event.emitted)
                text[event.lane] = text.get(event.lane, "") + added
        yield {
            "events": {str(count + i): event_to_json(event) for i, event in enumerate(batch["events"])},
            "text": text,
        }
        count += len(batch["events"])
    yield {"summary": summarize(tally).to_json()}
