"""Matrices in eight bits: how they are stored, and how a row is multiplied with one.

Owns: rounding to one byte a weight with a scale a row, and the linear layer over it. Must not know heads or files.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def to_eight_bits(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 of the same shape (rows, columns), bfloat16 scale of each row): matrix ≈ int8 * scale.

    The scale is rounded first and the weights then to multiples of it, so that no row is off as a whole.
    """
    exact = matrix.detach().float()
    scale = (exact.abs().amax(dim=1).clamp_min(1e-12) / 127).to(torch.bfloat16)
    return (exact / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def from_eight_bits(eight: Tensor, scale: Tensor) -> Tensor:
    """The float32 matrix that the bytes stand for."""
    return eight.float() * scale.float()[:, None]


class Linear:
    """x @ matrix.T for a matrix of shape (outputs, inputs) that was stored in eight bits.

    On a CPU in bfloat16 the bytes themselves are multiplied, for a draft's few rows are bound by memory; the
    operator is torch's own but private, so where it is missing, and everywhere else, the matrix is unpacked.
    """

    def __init__(self, eight: Tensor, scale: Tensor, dtype: torch.dtype, device: torch.device) -> None:
        self._bytes: Tensor | None = None
        if _multiplies_bytes(dtype, device):
            self._bytes = eight.clone()  # for the operator needs aligned memory
            self._scale = scale.to(dtype)
        else:
            self._matrix = from_eight_bits(eight, scale).to(device, dtype)

    @classmethod
    def of(cls, matrix: Tensor) -> Linear:
        """Over a matrix that is at hand in full: rounded only where bytes are multiplied."""
        made = cls(*to_eight_bits(matrix), matrix.dtype, matrix.device)
        if made._bytes is None:
            made._matrix = matrix
        return made

    def __call__(self, x: Tensor) -> Tensor:
        """Shape (rows, inputs) to (rows, outputs)."""
        if self._bytes is None:
            return F.linear(x, self._matrix)
        return torch._weight_int8pack_mm(x, self._bytes, self._scale)


def _multiplies_bytes(dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "cpu" and dtype == torch.bfloat16 and hasattr(torch.ops.aten, "_weight_int8pack_mm")
