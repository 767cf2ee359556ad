"""The distillation loss, exact on its classes and cheap in memory.

Owns: cross-entropy against the target's stored top tokens with everything else as one class, mixed with
its greedy choice; the gradient worked out by hand, block by block, so that the (rows, vocabulary) table
is never kept. Must not know models, files or the training loop.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_BLOCK_ELEMENTS = 1 << 21
"""Logits handled at once: what fits the processor's cache."""


@dataclass(frozen=True)
class Labels:
    """What `rows` positions should predict, over `columns` classes of a (part of the) vocabulary.

    `columns` (rows, k) are positions of the top tokens in the class list, `weights` (rows, k) their shares
    of the loss and `tail` (rows,) that of all other tokens; a row's shares add up to its own weight.
    `prior` (classes,) is added to the logits: log of how many tokens a sampled class stands for.
    """

    columns: torch.Tensor
    weights: torch.Tensor
    tail: torch.Tensor
    prior: torch.Tensor | None


class _TopAndTail(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, head: torch.Tensor, labels: Labels, products: torch.dtype
    ) -> torch.Tensor:
        learns_head = ctx.needs_input_grad[1]
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros_like(head) if learns_head else None
        low_hidden, low_head = hidden.to(products), head.to(products)
        loss = hidden.new_zeros(())
        size = max(1, _BLOCK_ELEMENTS // head.shape[0])
        for start in range(0, hidden.shape[0], size):
            rows = slice(start, start + size)
            logits = (low_hidden[rows] @ low_head.T).to(hidden.dtype)
            part, grad = _block(logits, labels, rows)
            loss += part
            grad_hidden[rows] = grad.to(products) @ low_head
            if grad_head is not None:
                grad_head += grad.to(products).T @ low_hidden[rows]
        ctx.save_for_backward(grad_hidden, grad_head)
        return loss

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        grad_hidden, grad_head = ctx.saved_tensors
        return grad_hidden * grad, None if grad_head is None else grad_head * grad, None, None


def _block(logits: torch.Tensor, labels: Labels, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed loss of some rows and its gradient by their `logits` (rows, classes), which it overwrites.

    With q the softmax, w the shares of top tokens, t the tail's share and n = sum(w) + t: the gradient is
    n q - w at a top token and (n - t / q_tail) q elsewhere.
    """
    if labels.prior is not None:
        logits += labels.prior
    columns, weights, tail = labels.columns[rows], labels.weights[rows], labels.tail[rows]
    top_logits = logits.gather(1, columns)
    peak = logits.amax(dim=1, keepdim=True)
    powers = logits.sub_(peak).exp_()
    mass = powers.sum(dim=1, keepdim=True)
    top = powers.gather(1, columns) / mass
    rest = (1 - top.sum(dim=1)).clamp_min(1e-7)
    log_top = top_logits - peak - mass.log()
    loss = -(weights * log_top).sum() - (tail * rest.log()).sum()
    total = weights.sum(dim=1) + tail
    gradient = powers.mul_((total - tail / rest)[:, None] / mass)
    gradient.scatter_(1, columns, total[:, None] * top - weights)
    return loss, gradient


def top_and_tail(
    hidden: torch.Tensor, head: torch.Tensor, labels: Labels, products: torch.dtype | None = None
) -> torch.Tensor:
    """Sum over rows of -sum_k w_k log q_k - t log(1 - sum_k q_k), q = softmax(hidden @ head.T + prior).

    `hidden` (rows, width) and, where it learns, `head` (classes, width) receive gradients. `products` is the type
    in which matrices are multiplied (that of `hidden` by default); everything between stays in that of `hidden`.
    """
    return _TopAndTail.apply(hidden, head, labels, products or hidden.dtype)  # type: ignore[no-any-return]


def choose_classes(
    top_ids: npt.NDArray[np.int64], vocab_size: int, num_sampled: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32] | None]:
    """Which tokens a batch is scored against: all its top tokens and a sample of the others.

    Returns the sorted ids (classes,) and each one's prior, or the whole vocabulary and None where a sample
    would save little.
    """
    present = np.unique(top_ids)
    if len(present) + num_sampled > vocab_size * 3 // 4:
        return np.arange(vocab_size), None
    others = np.setdiff1d(rng.integers(vocab_size, size=num_sampled), present)
    ids = np.sort(np.concatenate([present, others]))
    stands_for = (vocab_size - len(present)) / len(others)
    prior = np.where(np.isin(ids, present, assume_unique=True), 0.0, np.log(stands_for))
    return ids, prior.astype(np.float32)


def soft_shares(
    top_logps: npt.NDArray[np.float16], greedy_share: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Shares of the top tokens (rows, k) and of the tail (rows,): the target's probabilities at
    temperature 1, mixed with `greedy_share` of its first choice."""
    probabilities = np.exp(top_logps.astype(np.float32))
    probabilities /= np.maximum(1.0, probabilities.sum(axis=1, keepdims=True))
    tail = (1 - greedy_share) * (1 - probabilities.sum(axis=1))
    weights = (probabilities * (1 - greedy_share)).astype(np.float32)
    weights[:, 0] += greedy_share
    return weights, np.maximum(tail, 0.0, dtype=np.float32)
