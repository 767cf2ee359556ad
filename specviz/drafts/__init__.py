"""Draft sources: who guesses the tokens that the target will check.

Owns: the one seam, `DraftSource`, that small models, retrieval, counts and mixtures share. Must not know
acceptance (that is `verify`), timing or faces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from specviz.runner.cache import TreeCache
from specviz.sampling import Sampler
from specviz.verify import TokenTree


@dataclass(frozen=True, slots=True)
class Observation:
    """What a pass taught: told to every source after it.

    `emitted` are the committed ids of the pass; `tree` what was drafted and `path` the accepted nodes;
    `logits` the target's own of shape (1 + nodes, vocab), row 0 behind the root, row i + 1 behind node i,
    before any setting; `hidden` its last hidden states of shape (1 + nodes, hidden) where asked for.
    """

    emitted: tuple[int, ...]
    tree: TokenTree
    path: tuple[int, ...]
    logits: Tensor
    hidden: Tensor | None = None


class DraftSource(Protocol):
    """Anything that proposes tokens. One object serves one lane of one run at a time.

    `names` are shown to people; a proposal's `proposer` is an index into them.
    """

    names: tuple[str, ...]
    wants_hidden: bool

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        """Forget the last run and read the prompt.

        `sampler` shapes this lane's rows, the target's too. A slow source looks at `cancelled` between its
        passes and then returns early, here and in `propose`.
        """

    def propose(self, context_ids: list[int], budget: int, generator: torch.Generator) -> TokenTree:
        """Draft at most `budget` nodes behind the committed `context_ids`; an empty tree is "no draft".

        A sampled proposal carries the row it was drawn from and is never dropped, reordered or replaced;
        whether another is drawn may depend on those before it.

        Raises:
            NumericsError: the draft returned NaN or infinite logits; the sentence names it and has no end, since
                the loop adds the step.
        """

    def observe(self, seen: Observation) -> None:
        """Learn from the verified pass."""


@runtime_checkable
class ReadsPrompt(Protocol):
    """A source that wants the target's hidden states, those of the prompt included."""

    def read_prompt(self, hidden: Tensor) -> None:
        """Told once after `start`: the last hidden states (tokens, hidden size) of the prompt but its last token.

        Row i is what the target made of token i, and what it predicts token i + 1 from.
        """


@runtime_checkable
class SharesCache(Protocol):
    """A source that is part of the target and reads its keys and values."""

    def share(self, cache: TreeCache) -> None:
        """Told once before `start`: the cache of the lane's target. Its committed slots are to be left alone."""


@runtime_checkable
class Copying(Protocol):
    """A source that copies: up to `most_copied` tokens a step, whatever the draft length is."""

    most_copied: int


def most_copied(source: DraftSource) -> int:
    """Tokens that a source may copy in a step; 0 for one that draws what it drafts, which costs time."""
    return source.most_copied if isinstance(source, Copying) else 0
