"""Counts, and a trained head where counts are in doubt: one tree of both.

Owns: `AskingTree`: when the head is asked, and how far it is trusted. Must not know what kind of head it is.

A head knows more than counts and costs a forward, some 5 % of a pass, each time it is asked. It is asked at the
root alone, and only where the best guess there is in doubt: replayed on 46 held-out answers that raised 3.14
tokens per pass to 3.37; asking again, behind the likeliest nodes, gave 3.40 and took more time than it saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specviz.drafts import Observation, ReadsPrompt
from specviz.drafts.growth import Site
from specviz.drafts.guess import NUM_BLENDED, NUM_CANDIDATES, Blend, Guess, Guesser, Ranked, ranked_sum
from specviz.drafts.guess_tree import GuessTree
from specviz.drafts.head_draft import HeadDraft
from specviz.errors import NumericsError
from specviz.sampling import Sampler

SURE = 0.75
HEAD_SHARES = (0.69, 0.71, 0.44, 0.22, 0.14, 0.03)
"""What the head's list is worth beside the blended one, by the level of the first guesser: how long a match the
text itself has. Maximum likelihood on 138 held-out answers."""


class AskingTree(GuessTree):
    """A `GuessTree` whose root also knows what a head expects, where that is worth asking."""

    def __init__(
        self, guessers: Sequence[Guesser], head: HeadDraft, blend: Blend, sampled: Blend | None = None
    ) -> None:
        super().__init__(guessers, blend, sampled)
        self._head = head
        self._proposers.append(len(self.names))
        self.names = (*self.names, *head.names)
        self.wants_hidden = head.wants_hidden

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        super().start(context_ids, sampler, cancelled)
        self._head.start(context_ids, sampler, cancelled)

    def read_prompt(self, hidden: Tensor) -> None:
        """The prompt's states, for a head that reads them."""
        if isinstance(self._head, ReadsPrompt):
            self._head.read_prompt(hidden)

    def observe(self, seen: Observation) -> None:
        super().observe(seen)
        self._head.observe(seen)

    def _root(self, context_ids: list[int]) -> Site:
        site = super()._root(context_ids)
        if site.ranked and site.ranked[0][1] >= SURE:
            return site
        asked = self._ask(context_ids)
        share = HEAD_SHARES[site.guesses[0].level]
        ranked = ranked_sum([(1 - share, site.ranked), (share, asked)], NUM_BLENDED) if asked else site.ranked
        return site._replace(guesses=[*site.guesses, Guess(1, asked)], ranked=ranked)

    def _ask(self, context_ids: list[int]) -> Ranked:
        """What the head expects at the text's end; nothing where it has read no text yet.

        Raises:
            NumericsError: NaN or infinite logits.
        """
        logits = self._head.begin(context_ids)
        if logits is None:
            return []
        if not bool(torch.isfinite(logits).all()):
            raise NumericsError(f"The draft {self._head.names[0]} returned NaN or infinite logits.")
        return self._head.candidates(logits, NUM_CANDIDATES)[0]
