"""What a loaded model costs and promises on this machine: pass times by block size, and the exactness probe.

Owns: filling `LoadedModel.pass_times` and `bit_exact`, once a model. Must not know runs or drafts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from specviz.models import LoadedModel
from specviz.runner.eager import Runner

BLOCK_SIZES = (1, 2, 4, 8, 16, 32)
_REPEATS = 3
_CONTEXT = 48


def calibrate(loaded: LoadedModel, clock: Callable[[], float] = time.perf_counter) -> None:
    """Measure once; later calls return at once. Also the warm-up, so that no run pays for first calls."""
    if loaded.pass_times:
        return
    runner = Runner(loaded, capacity=2 * _CONTEXT)
    ids = _probe_ids(loaded, _CONTEXT)
    runner.prefill(ids)
    sizes = [size for size in BLOCK_SIZES if not loaded.context_len or len(ids) + size <= loaded.context_len]
    loaded.pass_times = {size: _pass_time(runner, ids[:1] * size, clock) for size in sizes or [1]}
    loaded.bit_exact = blocks_equal_single_passes(loaded)


def _pass_time(runner: Runner, token_ids: list[int], clock: Callable[[], float]) -> float:
    times = []
    for _ in range(1 + _REPEATS):
        start = clock()
        runner.forward(token_ids).logits[0, 0].item()
        times.append(clock() - start)
        runner.keep([])
    return statistics.median(times[1:])


def blocks_equal_single_passes(loaded: LoadedModel) -> bool:
    """Whether a tree of tokens gives the same bits as each of its paths fed one token at a time.

    Compares logits, keys and values of a small tree behind a short text, both branches.
    """
    prefix, parents = _probe_ids(loaded, 21), [-1, 0, 1, 0, 3, 4, 4]
    tokens = _probe_ids(loaded, 21 + len(parents))[21:]
    block = Runner(loaded)
    block.prefill(prefix)
    together = block.forward(tokens, parents).logits
    return all(_path_equals(loaded, prefix, tokens, path, together, block) for path in ([0, 1, 2], [0, 3, 4, 6]))


def _path_equals(
    loaded: LoadedModel,
    prefix: list[int],
    tokens: list[int],
    path: list[int],
    together: torch.Tensor,
    block: Runner,
) -> bool:
    alone = Runner(loaded)
    alone.prefill(prefix)
    for row in path:
        logits = alone.forward([tokens[row]]).logits
        alone.keep([0])
        if not torch.equal(logits[0], together[row]):
            return False
    in_text_order = range(len(prefix) + len(path))
    in_tree = [*range(len(prefix)), *(len(prefix) + row for row in path)]
    ours, theirs = alone.cache.stored(in_text_order), block.cache.stored(in_tree)
    return all(torch.equal(one, many) for one, many in zip(ours, theirs, strict=True))


def _probe_ids(loaded: LoadedModel, num: int) -> list[int]:
    """Ids spread over the vocabulary, and no more than half the context."""
    limit = min(num, loaded.context_len // 2) if loaded.context_len else num
    return [(37 * i + 11) % loaded.vocab_size for i in range(max(limit, 1))]
