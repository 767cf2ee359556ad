"""Measurements of searching for copies: indexing a million tokens, and one longest match in them.

Owns: this section. Must not know how rows are shown.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specviz.bench.bench import Bench, Goal, Row
from specviz.bench.rounds import Spread
from specviz.drafts.retrieval.fixed import FixedTexts
from specviz.drafts.retrieval.library import tokenize
from specviz.drafts.retrieval.live import LiveText
from specviz.drafts.retrieval.sets import ReferenceSet

NUM_TOKENS = 1_000_000
CONTEXTS = (100, 2_000, 8_000)
SECTION = "searching"
INDEX_GOAL_S, MATCH_GOAL_MS, MEMORY_GOAL = 3.0, 0.2, 100.0


def searching(bench: Bench) -> Iterator[Row]:
    """Indexing and matching on one core, over the sentences of the bundled references in random order.

    So the text holds every word hundreds of times, and passages as long as chance makes them.
    """
    if not bench.sets:
        return
    text = _long_text(bench.sets, NUM_TOKENS)
    start = time.perf_counter()
    ids = tokenize(bench.load_tokenizer(bench.target), text).ids[:NUM_TOKENS]
    yield _row("tokenizing, apart", "s", [time.perf_counter() - start])
    yield _row("indexing", "s", [_seconds(lambda: FixedTexts.of({"text": ids})) for _ in range(3)], INDEX_GOAL_S)
    kept, peak = _memory(ids)
    yield _row("memory of the index, bytes a token", "", [kept], MEMORY_GOAL)
    yield _row("memory at the highest point of indexing, bytes a token", "", [peak], MEMORY_GOAL)
    yield from _matching(FixedTexts.of({"text": ids}), ids)


def _row(name: str, unit: str, values: list[float], at_most: float | None = None) -> Row:
    goal = None if at_most is None else Goal(at_most, at_most=True)
    return Row(SECTION, name, unit, Spread.of(values), goal, f"{NUM_TOKENS:,} tokens")


def _long_text(sets: Sequence[ReferenceSet], num_tokens: int) -> str:
    """Sentences drawn with replacement until there are tokens enough (a token is at most 8 characters, mostly)."""
    documents = [document.text for one in sets for document in one.documents]
    sentences = [line for text in documents for line in text.replace(". ", ".\n").split("\n") if line.strip()]
    mean = sum(map(len, sentences)) / len(sentences)
    drawn = np.random.default_rng(0).integers(len(sentences), size=int(8 * num_tokens / mean))
    return "\n".join(sentences[i] for i in drawn)


def _seconds(job: Callable[[], Any]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def _memory(ids: NDArray[np.int64]) -> tuple[float, float]:
    """Bytes a token: (that an index keeps, at the highest point while it is made)."""
    tracemalloc.start()
    try:
        texts = FixedTexts.of({"text": ids})
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return kept / texts.lengths[0], peak / texts.lengths[0]


def _matching(texts: FixedTexts, ids: NDArray[np.int64]) -> Iterator[Row]:
    rng = np.random.default_rng(1)
    for size in CONTEXTS:
        contexts = [_excerpt(ids, size, rng) for _ in range(100)]
        texts.match(contexts[0], 2)
        found = [_seconds(lambda text=text: texts.match(text, 2)) for text in contexts]  # type: ignore[misc]
        yield _row(f"longest match, context of {size:,}", "ms", [1000 * s for s in found], MATCH_GOAL_MS)
        lives = [(LiveText(text[:-1]), text[-1:]) for text in contexts]
        grown = [_seconds(lambda live=live, new=new: (live.extend(new), live.match(2))) for live, new in lives]  # type: ignore[misc]
        yield _row(f"the same in the text being written, {size:,}", "ms", [1000 * s for s in grown], MATCH_GOAL_MS)


def _excerpt(ids: NDArray[np.int64], size: int, rng: np.random.Generator) -> list[int]:
    """A piece of the text; every second one with its tail from elsewhere, so that the match is short."""
    place = int(rng.integers(size, len(ids)))
    piece: list[int] = ids[place - size : place].tolist()
    if rng.integers(2):
        other = int(rng.integers(8, len(ids)))
        piece[-4:] = ids[other - 4 : other].tolist()
    return piece
