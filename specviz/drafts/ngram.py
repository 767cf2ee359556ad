"""Counts of a target's answers: which tokens follow the last few, and how likely, in one memory-mapped file.

Owns: `NgramTable`, its file format and how a context is looked up. Must not know how counts are made (that is
`distill`), or trees.

A file holds contexts of 1 to `order` tokens. Each has a short list of tokens with probabilities, already smoothed
with those of the shorter contexts, so a lookup reads one list: that of the longest context that is known. Contexts
are kept as 32-bit hashes in one sorted array. Two contexts may share a hash; then one gets the other's list, which
is a worse guess and nothing else, as every guess is checked by the target.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specviz.drafts.guess import Guess
from specviz.errors import ModelError

MAX_ORDER = 4
_FORMAT = "specviz-ngram-1"
_STEPS_PER_NAT = 32
_PROBABILITY = [math.exp(-code / _STEPS_PER_NAT) for code in range(256)]
_DTYPES: dict[str, np.dtype[Any]] = {
    "U8": np.dtype(np.uint8),
    "U16": np.dtype(np.uint16),
    "U32": np.dtype(np.uint32),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MULTIPLIER, _MASK, _SEED = 0x9E3779B1, 0xFFFFFFFF, 0x811C9DC5
_MAX_REMEMBERED = 20_000


def tokenizer_stamp(tokenizer: Any) -> str:
    """A short hash of which id means which token; files are tied to it."""
    vocabulary = sorted((token_id, token) for token, token_id in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()[:16]


def context_keys(columns: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.uint32]:
    """Hashes of many contexts at once: `columns[i]` (n,) are the ids i + 1 places back."""
    state = np.full(len(columns[0]), _SEED, np.uint64)
    for ids in columns:
        state = ((state ^ ids.astype(np.uint64)) * np.uint64(_MULTIPLIER)) & np.uint64(_MASK)
        state ^= state >> np.uint64(16)
    return (state ^ np.uint64(len(columns))).astype(np.uint32)


def _key_of_each_length(tail: Sequence[int], order: int) -> list[int]:
    """The same for one text: the key of its last token, of its last two, and so on."""
    state, keys = _SEED, []
    for length, token_id in enumerate(reversed(tail[-order:]), start=1):
        state = ((state ^ token_id) * _MULTIPLIER) & _MASK
        state ^= state >> 16
        keys.append(state ^ length)
    return keys


def encode_probabilities(probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """To steps of 3 % in eight bits, down to e⁻⁸."""
    codes: npt.NDArray[np.float64] = np.rint(-np.log(np.maximum(probabilities, 1e-9)) * _STEPS_PER_NAT)
    return codes.clip(0, 255).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class NgramTable:
    """Sorted `keys` (contexts,), `starts` (contexts + 1,) of each list in `ids` and `codes` (entries,).

    A list is ordered likeliest first. `order` is the longest context; `stamp` names the tokenizer.
    """

    keys: npt.NDArray[np.uint32]
    starts: npt.NDArray[np.uint32]
    ids: npt.NDArray[Any]
    codes: npt.NDArray[np.uint8]
    order: int
    stamp: str
    notes: Mapping[str, str]

    def find(self, tail: Sequence[int]) -> Guess:
        """The list of the longest known context that `tail` ends in; its length is the guess's level."""
        keys = _key_of_each_length(tail, self.order)
        for level in range(len(keys), 0, -1):
            key = np.uint32(keys[level - 1])
            place = int(self.keys.searchsorted(key))
            if place < len(self.keys) and self.keys[place] == key:
                start, end = int(self.starts[place]), int(self.starts[place + 1])
                probabilities = [_PROBABILITY[code] for code in self.codes[start:end].tolist()]
                return Guess(level, list(zip(self.ids[start:end].tolist(), probabilities, strict=True)))
        return Guess(0, [])

    def to_bytes(self) -> bytes:
        """The whole file, in the safetensors layout; equal tables give equal bytes (the library's do not)."""
        arrays = {"keys": self.keys, "starts": self.starts, "ids": self.ids, "codes": self.codes}
        notes = {"format": _FORMAT, "order": str(self.order), "tokenizer": self.stamp, **self.notes}
        header: dict[str, Any] = {"__metadata__": notes}
        end = 0
        for name, array in arrays.items():  # widest items first, so that each stands at a multiple of its size
            begin, end = end, end + array.nbytes
            kind = _NAMES[array.dtype]
            header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return b"".join([len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in arrays.values())])

    @classmethod
    def open(cls, path: Path) -> NgramTable:
        """Map a file into memory.

        Raises:
            ModelError: it is missing, damaged or of another kind; one sentence.
        """
        try:
            data = np.memmap(path, dtype=np.uint8, mode="r")
            length = int.from_bytes(data[:8].tobytes(), "little")
            header = json.loads(data[8 : 8 + length].tobytes())
            notes = header.pop("__metadata__")
            if notes.pop("format") != _FORMAT:
                raise ValueError("another format")
            arrays = {name: _view(data[8 + length :], header[name]) for name in ("keys", "starts", "ids", "codes")}
            table = cls(**arrays, order=int(notes.pop("order")), stamp=notes.pop("tokenizer"), notes=notes)
            table._check()
        except FileNotFoundError:
            raise ModelError(f"No counts at {str(path)!r}; make them with: distill --kind ngram.") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(
                f"{str(path)!r} is damaged or holds no counts ({error}); make it again with: distill --kind ngram."
            ) from error
        return table

    def _check(self) -> None:
        """Raises ValueError where a lookup could read outside or miss what is there."""
        whole = (
            1 <= self.order <= MAX_ORDER
            and len(self.starts) == len(self.keys) + 1
            and len(self.ids) == len(self.codes) == int(self.starts[-1])
            and int(self.starts[0]) == 0
            and bool((self.starts[1:] > self.starts[:-1]).all())
            and bool((self.keys[1:] > self.keys[:-1]).all())
        )
        if not whole:
            raise ValueError("its parts do not fit together")

    def check_tokens(self, tokenizer: Any, vocab_size: int, target: str) -> None:
        """A file speaks of ids, so it serves only the tokenizer it was counted with.

        Raises:
            ModelError: the target has another one, or not all of the ids.
        """
        if tokenizer is not None and tokenizer_stamp(tokenizer) != self.stamp:
            raise ModelError(
                f"These counts were made with another tokenizer than that of {target!r}; choose another draft, or "
                f"make its own with: distill --kind ngram --target {target}."
            )
        if len(self.ids) and int(self.ids.max()) >= vocab_size:
            raise ModelError(f"These counts name tokens that {target!r} has not; choose another draft.")


def _view(data: npt.NDArray[np.uint8], entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    """One array of the file, not copied."""
    begin, end = entry["data_offsets"]
    array = data[begin:end].view(_DTYPES[entry["dtype"]])
    if list(array.shape) != entry["shape"]:
        raise ValueError("its end is missing")
    return array


class NgramGuesser:
    """Guesses what followed the last tokens most often in the target's answers."""

    name = "ngram"

    def __init__(self, table: NgramTable) -> None:
        self._table = table
        self._found: dict[tuple[int, ...], Guess] = {}

    def start(self, context_ids: Sequence[int]) -> None:
        """Nothing of a run is kept but lookups, whose results never change."""
        del context_ids
        if len(self._found) > _MAX_REMEMBERED:
            self._found.clear()

    def extend(self, token_ids: Sequence[int]) -> None:
        """Nothing to take from the text."""

    def guess(self, tail: tuple[int, ...]) -> Guess:
        end = tail[-self._table.order :]
        found = self._found.get(end)
        if found is None:
            found = self._found[end] = self._table.find(end)
        return found

    def learn(self, tails: Sequence[tuple[int, ...]], tops: Sequence[Sequence[tuple[int, float]]]) -> None:
        """Counts are fixed."""
