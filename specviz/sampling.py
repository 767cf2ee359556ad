"""From logits to the probabilities that are drawn from: penalties, temperature, top-k, top-p.

Owns: `Sampler`, the settings of one lane applied alike to the target's and every draft's logits; the one
way to break ties (`first_argmax`) and the one way to draw (`draw`). Must not know models, trees or rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specviz.config import RunConfig

_NUCLEUS_SLICES = (64, 1024)
_COLUMN = 64


class Sampler:
    """The settings of one lane, with what they need to remember: ids seen and tokens made so far.

    A row for a drafted node is shaped by its own root path (`paths`), never by siblings. Rows come out over
    the target's vocabulary whatever width the logits have: a draft's padding ids are cut, missing ids get
    probability 0.
    """

    def __init__(
        self,
        config: RunConfig,
        prompt_ids: Sequence[int],
        *,
        vocab_size: int,
        eos_ids: Iterable[int] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.num_new = 0
        self._eos = torch.tensor(sorted(i for i in eos_ids if i < vocab_size), dtype=torch.long, device=device)
        self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self._mark(prompt_ids)

    def commit(self, token_ids: Sequence[int]) -> None:
        """Take emitted ids into account: for penalties and for the minimum length."""
        self.num_new += len(token_ids)
        self._mark(token_ids)

    @property
    def num_draftable(self) -> int:
        """Tokens still wanted, less the one that is the target's own in any pass: no draft need be deeper."""
        return max(self.config.max_new_tokens - self.num_new - 1, 0)

    def _mark(self, token_ids: Sequence[int]) -> None:
        self._seen[[i for i in token_ids if i < self.vocab_size]] = True

    def shape(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Penalised logits, float32, of shape (rows, vocab_size).

        `logits` has shape (rows, any width); `paths[i]` are the drafted ids between the committed text and
        row i. Repetition penalty as in Keskar et al. 1909.05858 (eq. for θ), prompt ids included.
        """
        logits = self._fit(logits)
        if self.config.repetition_penalty != 1.0:
            logits = torch.stack([self._penalise(r, p) for r, p in zip(logits, paths, strict=True)])
        barred = [i for i, path in enumerate(paths) if self.num_new + len(path) < self.config.min_new_tokens]
        if barred and len(self._eos):
            logits = logits.clone()
            logits[torch.tensor(barred, device=logits.device)[:, None], self._eos] = -torch.inf
        return logits

    def changes(self, paths: Sequence[Sequence[int]]) -> bool:
        """Whether `shape` does anything to the logits behind these paths but fit their width."""
        shortest = min((len(path) for path in paths), default=0)
        barred = len(self._eos) > 0 and self.num_new + shortest < self.config.min_new_tokens
        return self.config.repetition_penalty != 1.0 or barred

    def _fit(self, logits: Tensor) -> Tensor:
        logits = logits.float()
        missing = self.vocab_size - logits.shape[-1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return logits[:, : self.vocab_size]

    def _penalise(self, row: Tensor, path: Sequence[int]) -> Tensor:
        seen = self._seen
        if path:
            seen = seen.clone()
            seen[[i for i in path if i < self.vocab_size]] = True
        penalty = self.config.repetition_penalty
        return torch.where(seen, torch.where(row < 0, row * penalty, row / penalty), row)

    def probabilities(self, shaped: Tensor) -> Tensor:
        """Shaped logits to the rows that tokens are drawn from, float32, same shape, each summing to 1.

        Temperature 0 gives one-hot rows, so that greedy decoding needs no rule of its own.
        """
        if self.config.temperature == 0:
            rows = torch.zeros_like(shaped)
            return rows.scatter_(1, first_argmax(shaped)[:, None], 1.0)
        scaled = shaped / self.config.temperature
        if 0 < self.config.top_k < scaled.shape[-1]:
            smallest_kept = scaled.topk(self.config.top_k, dim=-1).values[:, -1:]
            scaled = scaled.masked_fill(scaled < smallest_kept, -torch.inf)
        rows = torch.softmax(scaled, dim=-1)
        return nucleus(rows, self.config.top_p) if self.config.top_p < 1 else rows

    def confidence(self, shaped: Tensor, rows: Tensor) -> Tensor:
        """Rows to show to people: those drawn from, or at temperature 0 the softmax, not a one-hot."""
        return torch.softmax(shaped, dim=-1) if self.config.temperature == 0 else rows


def one_hot(token_id: int, sampler: Sampler) -> Tensor:
    """The row of a choice made without chance, shape (vocab,)."""
    row = torch.zeros(sampler.vocab_size, device=sampler.device)
    row[token_id] = 1.0
    return row


def nucleus(rows: Tensor, top_p: float) -> Tensor:
    """Keep of each row the fewest tokens whose mass reaches `top_p` (Holtzman et al. 1904.09751), renormalised.

    Looks at a slice of the most probable tokens first, then at a larger one, and sorts a whole row only where
    its mass still falls short.
    """
    kept = torch.zeros_like(rows)
    open_rows = torch.arange(len(rows), device=rows.device)
    for size in (*(size for size in _NUCLEUS_SLICES if size < rows.shape[-1]), rows.shape[-1]):
        looked_at = rows[open_rows]
        values, ids = looked_at.topk(size, dim=-1)
        mass = values.double().cumsum(-1)
        values = torch.where(mass - values < top_p, values, 0.0)
        kept[open_rows] = torch.zeros_like(looked_at).scatter_(1, ids, values / values.sum(-1, keepdim=True))
        open_rows = open_rows[mass[:, -1] < top_p]
        if not len(open_rows):
            break
    return kept


def first_argmax(rows: Tensor) -> Tensor:
    """The lowest id among each row's largest values: (rows, vocab) to (rows,).

    bfloat16 logits tie often, and `argmax` and `topk` break ties differently; this is the one way here.
    """
    if rows.device.type == "cpu":
        return torch.from_numpy(rows.numpy().argmax(-1))  # numpy promises the first, and takes a tenth
    best = rows.amax(dim=-1, keepdim=True)
    ids = torch.arange(rows.shape[-1], device=rows.device)
    return torch.where(rows == best, ids, rows.shape[-1]).amin(dim=-1)


def top_candidates(rows: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Values and ids of each row's `num` largest entries, best first, lowest id first among equals.

    `rows` has shape (rows, vocab); both results (rows, num). `topk` alone leaves ties in no fixed order.
    """
    values, ids = _topk(rows, min(num, rows.shape[-1]))
    by_id = ids.argsort(dim=-1)
    values, ids = values.gather(-1, by_id), ids.gather(-1, by_id)
    by_value = values.argsort(dim=-1, descending=True, stable=True)
    return values.gather(-1, by_value), ids.gather(-1, by_value)


def _topk(rows: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """As `topk`, in a fifth of the time: the `num` largest lie in the `num` columns with the largest heads.

    Ids that are equal modulo the number of columns form a column; its head is its maximum.
    """
    num_rows, width = rows.shape
    num_columns, left_over = divmod(width, _COLUMN)
    if left_over or num_columns < 2 * num:
        return rows.topk(num, dim=-1)
    columns = rows.reshape(num_rows, _COLUMN, num_columns)
    best = columns.amax(1).topk(num, dim=-1).indices
    inside = columns.gather(2, best[:, None].expand(-1, _COLUMN, -1)).reshape(num_rows, -1)
    values, places = inside.topk(num, dim=-1)
    return values, places // num * num_columns + best.gather(1, places % num)


def draw(row: Tensor, u: float) -> tuple[int, float, float]:
    """The token whose interval [low, high) of the row's cumulative sum holds `u`; returns (id, low, high).

    `row` has shape (vocab,) and sums to 1 up to rounding; `u` is in [0, 1). Tokens of probability 0 have an
    empty interval and are never drawn.
    """
    cumulative = row.double().cumsum(0)
    cumulative /= cumulative[-1].clone()
    token = int(torch.searchsorted(cumulative, u, right=True))
    low = float(cumulative[token - 1]) if token else 0.0
    return token, low, float(cumulative[token])


def uniform(generator: torch.Generator) -> float:
    """One uniform draw in [0, 1), double precision."""
    return float(torch.rand((), dtype=torch.float64, generator=generator, device=generator.device))
