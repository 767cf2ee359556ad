"""The drafts over counts: `ngram`, `recycle` and `mix`, each a choice of guessers over one file of counts.

Owns: which guessers each is made of, and their blend's weights in the file. Must not know where files lie.

`mix` is one tree, not one share for each: what stands in the text before, what the target expected at its last
visit, and what it usually says are blended into one probability at every node; the likeliest paths are drafted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from specviz.drafts.asking import AskingTree
from specviz.drafts.copies import CopyGuesser
from specviz.drafts.guess import Blend, Guesser, Weights
from specviz.drafts.guess_tree import GuessTree
from specviz.drafts.head_draft import HeadDraft
from specviz.drafts.ngram import NgramGuesser, NgramTable
from specviz.drafts.recycle import RecycledGuesser
from specviz.errors import ModelError

GUESSERS: Mapping[str, Callable[[NgramTable], Sequence[Guesser]]] = {
    "ngram": lambda table: (NgramGuesser(table),),
    "recycle": lambda table: (RecycledGuesser(2), RecycledGuesser(1), NgramGuesser(table)),
    "mix": lambda table: (CopyGuesser(), RecycledGuesser(2), RecycledGuesser(1), NgramGuesser(table)),
}


def make_tree(kind: str, table: NgramTable, head: HeadDraft | None = None) -> GuessTree:
    """The draft source of that kind over these counts; a head is asked where they are in doubt.

    Raises:
        ModelError: the weights in the file cannot be read.
    """
    greedy, sampled = (_read_weights(table.notes.get(name, "{}")) for name in weight_notes(kind))
    guessers, blends = GUESSERS[kind](table), (Blend(greedy), Blend(sampled) if sampled else None)
    return AskingTree(guessers, head, *blends) if head else GuessTree(guessers, *blends)


def weight_notes(kind: str) -> tuple[str, str]:
    """The names of a kind's weights among a file's notes: at temperature 0, and above."""
    return kind, f"{kind}, sampled"


def write_weights(weights: Weights) -> str:
    """As one note of a file: {"levels": [weight of each guesser, ...], ...}."""
    named = {",".join(map(str, levels)): [round(w, 3) for w in shares] for levels, shares in weights.items()}
    return json.dumps(named, separators=(",", ":"), sort_keys=True)


def _read_weights(note: str) -> Weights:
    try:
        named = json.loads(note)
        return {
            tuple(int(level) for level in levels.split(",")): [float(w) for w in shares]
            for levels, shares in named.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"The weights in the file of counts cannot be read ({error}); make it again.") from error
