"""Retrieval as a draft source: copy what followed the same words, and let the target check it.

Owns: `Retrieval` and `prompt_lookup`. Must not know the rule, files or tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from specviz.config import DraftLen, RetrievalSettings
from specviz.drafts import Observation
from specviz.drafts.retrieval.copy_length import CopyLength
from specviz.drafts.retrieval.fixed import FixedTexts
from specviz.drafts.retrieval.live import LiveText
from specviz.drafts.retrieval.match import Match, longest, plan
from specviz.sampling import Sampler, one_hot
from specviz.verify import ROOT, TokenTree


class Retrieval:
    """Copies behind the longest match of the text's end, in fixed texts, the prompt and the own output.

    LLMA (Yang et al. 2304.04487) for references, prompt lookup (Saxena 2023) for the text itself, REST (He et al.
    2311.08252) for a corpus; here one pool: the longest match wins, then the most frequent continuation, then
    the most recent. Every copy is a sure choice, so its row is one-hot. No match is an empty tree.
    """

    wants_hidden = False

    def __init__(self, name: str, texts: Sequence[FixedTexts], settings: RetrievalSettings) -> None:
        self.names: tuple[str, ...] = (name,)
        self._texts = tuple(texts) if "references" in settings.sources else ()
        self._settings = settings
        self.most_copied = settings.most_copied
        self._length = CopyLength(settings.copy_len)
        self._tree = TokenTree()
        self._match_len = 0
        self._live: LiveText
        self._sampler: Sampler

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        del cancelled
        self._sampler = sampler
        on = self._settings.sources
        self._live = LiveText(context_ids, prompt="prompt" in on, output="output" in on)
        self._length.reset()
        self._tree = TokenTree()

    def propose(self, context_ids: list[int], budget: int, generator: torch.Generator) -> TokenTree:
        del generator
        self._live.extend(context_ids[len(self._live) :])
        self._tree = TokenTree()
        matches = longest(self._matches(context_ids))
        self._match_len = matches[0].length if matches else 0
        num, keeps = min(budget, self._length.most), self._length.keeps(self._match_len)
        for copy in plan(matches, num, self._sampler.vocab_size, keeps):
            row = one_hot(copy.token_id, self._sampler)
            self._tree.add(copy.token_id, copy.parent, row, origin=copy.origin)
        return self._tree

    def observe(self, seen: Observation) -> None:
        """Follow what was emitted down the own tree; that tells how far the next copy is to be trusted.

        What was cut off before the pass was not looked at.
        """
        node, num_right = ROOT, 0
        for token_id in seen.emitted:
            child = self._tree.child(node, token_id)
            if child is None:
                break
            node, num_right = child, num_right + 1
        num_tried = min(max(tree.depths(), default=0) for tree in (self._tree, seen.tree))
        self._length.observe(self._match_len, num_tried, min(num_right, num_tried))
        self._tree = TokenTree()

    def _matches(self, context_ids: list[int]) -> Iterable[Match]:
        """The longest match in each text, the most recent text last."""
        least = self._settings.min_match
        found = [text.match(context_ids, least) for text in self._texts]
        return (match for match in (*found, self._live.match(least)) if match is not None)


def prompt_lookup(min_match: int = 1, copy_len: DraftLen = "auto") -> Retrieval:
    """The text being written as its only source. No model."""
    settings = RetrievalSettings(min_match=min_match, copy_len=copy_len, sources=("prompt", "output"))
    return Retrieval("lookup", (), settings)
