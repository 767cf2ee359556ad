"""The texts that a run copied from, token by token, for a pane that shows where each copy stood.

Owns: `source_tokens`. Must not know gradio or where a trace comes from.
"""

from __future__ import annotations

import itertools

from specviz.text import Detokenizer
from specviz.trace import PROMPT, Trace


def source_tokens(trace: Trace, source: str, first: int, last: int) -> list[str] | None:
    """The texts of tokens `first` up to `last` of a reference or of the prompt; None where they are not kept.

    A character of several tokens is the text of the one that completes it, so joined they are the source.
    """
    reference = next((one for one in trace.references if one.name == source), None)
    if reference is not None:
        bounds = [*reference.starts[first : last + 1]]
        if not reference.starts:
            return None
        if len(bounds) <= last - first:
            bounds.append(len(reference.text))
        return [reference.text[a:b] for a, b in itertools.pairwise(bounds)]
    started = trace.started("speculative") or trace.started("baseline")
    if source != PROMPT or started is None or not started.prompt_ids:
        return None
    reader = Detokenizer()
    for token_id in started.prompt_ids[:first]:
        reader.push(trace.pieces[token_id])
    pieces = [trace.pieces[token_id] for token_id in started.prompt_ids[first:last]]
    return [piece.data.decode(errors="replace") if piece.special else reader.push(piece) for piece in pieces]
