"""What a loaded model costs and promises on this machine: pass times by block size, and the exactness probe.

Owns: filling `LoadedModel.pass_times` and `bit_exact`, once a model. Must not know runs or drafts.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator

import torch

from specviz.errors import ModelError
from specviz.models import LoadedModel
from specviz.runner.eager import Runner

BLOCK_SIZES = (1, 2, 4, 8, 16, 32)
_REPEATS = 3
_CONTEXT = 48
_ROUNDING = {torch.float32: 1e-3}  # of the logits' spread; a wrong mask or position gives more than .15 of it
_ROUNDING_16_BIT = 0.1


def calibrate(loaded: LoadedModel, clock: Callable[[], float] = time.perf_counter) -> None:
    """Measure once; later calls return at once. Also the warm-up, so that no run pays for first calls.

    Raises:
        ModelError: the model cannot check a token tree in one pass.
    """
    if loaded.pass_times:
        return
    loaded.bit_exact = blocks_equal_single_passes(loaded)
    runner = Runner(loaded, capacity=2 * _CONTEXT)
    ids = _probe_ids(loaded, _CONTEXT)
    runner.prefill(ids)
    sizes = [size for size in BLOCK_SIZES if not loaded.context_len or len(ids) + size <= loaded.context_len]
    loaded.pass_times = {size: _pass_time(runner, ids[:1] * size, clock) for size in sizes or [1]}


def _pass_time(runner: Runner, token_ids: list[int], clock: Callable[[], float]) -> float:
    times = []
    for _ in range(1 + _REPEATS):
        start = clock()
        runner.forward(token_ids).logits[0, 0].item()
        times.append(clock() - start)
        runner.keep([])
    return min(times[1:])  # what else the machine does can only add


def blocks_equal_single_passes(loaded: LoadedModel) -> bool:
    """Whether a tree of tokens gives the same bits as each of its paths fed one token at a time.

    Compares logits, keys and values of a small tree, both branches, behind a short text and behind hardly any:
    products with few keys go to other kernels.

    Raises:
        ModelError: they differ by more than rounding, or the model takes no mask of ours at all.
    """
    refusal = f"{loaded.name!r} cannot check a token tree in one pass: "
    if "position_ids" not in inspect.signature(loaded.model.forward).parameters:
        raise ModelError(refusal + "it counts positions by itself.")
    try:
        compared = [outcome for num in (21, 2) for outcome in _probe(loaded, _probe_ids(loaded, num))]
    except Exception as error:  # a foreign model's forward may raise anything
        raise ModelError(f"{refusal}{error}.") from error
    if any(worst > tolerance for _, worst, tolerance in compared):
        raise ModelError(refusal + "its attention does not keep to the mask and positions it is given.")
    return all(equal for equal, _, _ in compared)


def _probe(loaded: LoadedModel, prefix: list[int]) -> Iterator[tuple[bool, float, float]]:
    """For two paths of a tree: (the same bits as alone, a logit's largest difference, what is allowed)."""
    parents = [-1, 0, 1, 0, 3, 4, 4]
    tokens = [_probe_id(loaded, len(prefix) + row) for row in range(len(parents))]
    block = Runner(loaded)
    block.prefill(prefix)
    together = block.forward(tokens, parents).logits
    tolerance = _ROUNDING.get(loaded.dtype, _ROUNDING_16_BIT) * float(together.max() - together.min())
    for path in ([0, 1, 2], [0, 3, 4, 6]):
        yield (*_compare(loaded, prefix, tokens, path, together, block), tolerance)


def _compare(
    loaded: LoadedModel,
    prefix: list[int],
    tokens: list[int],
    path: list[int],
    together: torch.Tensor,
    block: Runner,
) -> tuple[bool, float]:
    """(the same bits everywhere, the largest difference of a logit) of a tree's path and its single passes."""
    alone = Runner(loaded)
    alone.prefill(prefix)
    rows = []
    for row in path:
        rows.append(alone.forward([tokens[row]]).logits[0])
        alone.keep([0])
    singles = torch.stack(rows)
    in_tree = [*range(len(prefix)), *(len(prefix) + row for row in path)]
    ours, theirs = alone.cache.stored(range(len(in_tree))), block.cache.stored(in_tree)
    same_cache = all(torch.equal(one, many) for one, many in zip(ours, theirs, strict=True))
    return torch.equal(singles, together[path]) and same_cache, float((singles - together[path]).abs().max())


def _probe_ids(loaded: LoadedModel, num: int) -> list[int]:
    """Ids spread over the vocabulary, and no more than half the context."""
    limit = min(num, loaded.context_len // 2) if loaded.context_len else num
    return [_probe_id(loaded, i) for i in range(max(limit, 1))]


def _probe_id(loaded: LoadedModel, i: int) -> int:
    return (37 * i + 11) % loaded.vocab_size
