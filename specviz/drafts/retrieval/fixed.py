"""Named texts that do not change, as a place to copy from: the references of a run, or a corpus.

Owns: `FixedTexts`. Must not know files or tokenizers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specviz.drafts.retrieval.match import Match
from specviz.drafts.retrieval.suffix_array import SuffixArray


class FixedTexts:
    """Texts with their names and lengths in tokens, and the index over them all.

    `lengths` has shape (texts,); a separator stands behind each text.
    """

    def __init__(self, names: Sequence[str], lengths: Sequence[int], index: SuffixArray) -> None:
        self.names = tuple(names)
        self.lengths = tuple(lengths)
        self.index = index
        self._starts = np.concatenate([[0], np.cumsum(np.array(lengths, dtype=np.int64) + 1)])

    @classmethod
    def of(cls, texts: dict[str, Sequence[int] | NDArray[np.int64]]) -> FixedTexts:
        """Index token ids by name."""
        return cls(list(texts), [len(ids) for ids in texts.values()], SuffixArray.of(list(texts.values())))

    def match(self, context_ids: Sequence[int], min_match: int) -> Match | None:
        """The longest match of the text's end, or None."""
        length, places = self.index.longest(context_ids, min_match)
        return Match(self, length, places) if length else None

    def run(self, places: NDArray[np.int64], num: int) -> NDArray[np.int64]:
        """As `Text.run`; a copy ends with its text."""
        return places[:, None] + np.arange(num)

    def read(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """As `Text.read`."""
        return self.index.read(places)

    def locate(self, place: int) -> tuple[str, int]:
        """As `Text.locate`."""
        number = int(np.searchsorted(self._starts, place, side="right")) - 1
        return self.names[number], int(place - self._starts[number])
