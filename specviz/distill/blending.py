"""How far each guesser is to be trusted, learnt from answers that were kept aside; and what a tree is worth there.

Owns: fitting a blend's weights, and replaying answers. Must not know how counts are made or where files lie.

A replay gives a draft the target's own answer so far and checks its tree against what came next. No model runs:
only nodes on the answer's path teach, where a real pass teaches from all of its nodes. So it is an estimate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from specviz.config import RunConfig
from specviz.distill.store import Chat
from specviz.drafts.guess import NUM_CANDIDATES, TAIL, Guesser, Ranked, Weights
from specviz.drafts.guess_tree import GuessTree
from specviz.sampling import Sampler
from specviz.verify import ROOT, TokenTree

_ROUNDS = 40
_PRIOR = 5.0
"""Positions' worth of even weights that each situation starts from."""
_MISSED = 1e-6

Situation = tuple[int, ...]


def fit(guessers: Sequence[Guesser], chats: Sequence[Chat]) -> Weights:
    """The weights under which the blend makes the answers likeliest, for each situation met.

    Expectation maximisation of an interpolated model (Jelinek & Mercer 1980).
    """
    return {levels: _maximise(levels, chances) for levels, chances in _situations(guessers, chats).items()}


def _situations(guessers: Sequence[Guesser], chats: Sequence[Chat]) -> dict[Situation, npt.NDArray[np.float64]]:
    """Levels → the probabilities (positions, guessers) that the guessers gave to the token that came."""
    found: dict[Situation, list[list[float]]] = defaultdict(list)
    for chat in chats:
        for guesser in guessers:
            guesser.start(chat.ids[: chat.answer_start].tolist())
        for tail, token_id, top in positions(chat):
            guesses = [guesser.guess(tail) for guesser in guessers]
            levels = tuple(guess.level for guess in guesses)
            found[levels].append([dict(guess.ranked).get(token_id, 0.0) for guess in guesses])
            for guesser in guessers:
                guesser.learn([tail], [top])
                guesser.extend([token_id])
    return {levels: np.array(chances) for levels, chances in found.items()}


def _maximise(levels: Situation, chances: npt.NDArray[np.float64]) -> list[float]:
    known = np.array(levels) > 0
    even = known / max(1, known.sum())
    weights = even
    for _ in range(_ROUNDS):
        shares = weights * (chances + _MISSED)
        total = (shares / np.maximum(shares.sum(1, keepdims=True), _MISSED**2)).sum(0) + _PRIOR * even
        weights = total / max(total.sum(), _MISSED)
    return [float(weight) for weight in weights]


def positions(chat: Chat) -> Iterator[tuple[tuple[int, ...], int, Ranked]]:
    """Of each token of the answer: the ids before it, the token, and what the target expected there."""
    ids = chat.ids.tolist()
    tops = _tops(chat)
    for place in range(chat.answer_start, len(ids)):
        yield tuple(ids[max(0, place - TAIL) : place]), ids[place], tops[place - chat.first_row]


def _tops(chat: Chat) -> list[Ranked]:
    shares = np.exp(chat.top_logps[:, :NUM_CANDIDATES].astype(np.float64)).tolist()
    ids = chat.top_ids[:, :NUM_CANDIDATES].tolist()
    return [list(zip(i, s, strict=True)) for i, s in zip(ids, shares, strict=True)]


def replay(source: GuessTree, chats: Sequence[Chat], num_nodes: int, vocab_size: int) -> float:
    """Tokens per target pass along the answers, with trees of at most `num_nodes`; `nan` where there are none."""
    num_tokens = num_passes = 0
    for chat in chats:
        if chat.num_answer:
            num_tokens += chat.num_answer
            num_passes += _num_passes(source, chat, num_nodes, vocab_size)
    return num_tokens / num_passes if num_passes else float("nan")


def _num_passes(source: GuessTree, chat: Chat, num_nodes: int, vocab_size: int) -> int:
    ids, expected = chat.ids.tolist(), list(positions(chat))
    prompt = ids[: chat.answer_start]
    source.start(prompt, Sampler(RunConfig(), prompt, vocab_size=vocab_size), lambda: False)
    generator, num_passes, place = torch.Generator(), 0, chat.answer_start
    while place < len(ids):
        tree = source.propose(ids[:place], num_nodes, generator)
        end = min(place + _num_right(tree, ids[place:]) + 1, len(ids))
        told = expected[place - chat.answer_start : end - chat.answer_start]
        source.learn([tail for tail, _, _ in told], [top for _, _, top in told])
        place, num_passes = end, num_passes + 1
    return num_passes


def _num_right(tree: TokenTree, coming: Sequence[int]) -> int:
    """Nodes of the tree that lie on the path of what comes."""
    node, depth = ROOT, 0
    for token_id in coming:
        child = tree.child(node, token_id)
        if child is None:
            break
        node, depth = child, depth + 1
    return depth
