"""The target's last hidden states of the chats that it wrote, on disk and memory-mapped.

Owns: reading chats with the target once, the files, which chats are there. A file holds a stretch of chat indices
and is written whole or not at all, so a kill loses one stretch. Must not know what learns from states.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specviz.distill.store import Chat, write_atomic

_STRETCH = 64
_BATCH_TOKENS = 4096


class StateStore:
    """States in bfloat16, as they come from the target's last norm; a callable chat → (tokens, width)."""

    def __init__(self, folder: Path, chats: Sequence[Chat]) -> None:
        self._folder = folder
        self._stretches: dict[int, list[Chat]] = {}
        for chat in sorted(chats, key=lambda chat: chat.index):
            self._stretches.setdefault(chat.index // _STRETCH, []).append(chat)
        self._places: dict[int, tuple[npt.NDArray[np.int16], int]] = {}

    def __call__(self, chat: Chat) -> torch.Tensor:
        file, start = self._places[chat.index]
        return torch.from_numpy(np.array(file[start : start + len(chat.ids)])).view(torch.bfloat16)

    def __contains__(self, chat: Chat) -> bool:
        return chat.index in self._places

    def fill(self, model: Any, go_on: Callable[[float], bool]) -> None:
        """Read chats in the order of their indices while `go_on(share of chats that are there)` says so."""
        for number, (stretch, chats) in enumerate(self._stretches.items()):
            path = self._path(stretch, chats)
            if not path.exists():
                if not go_on(number / len(self._stretches)):
                    return
                states = np.concatenate(list(_read(model, chats)))
                write_atomic(path, partial(np.save, arr=states, allow_pickle=False))
            self._open(path, chats)

    def _path(self, stretch: int, chats: list[Chat]) -> Path:
        indices = np.array([chat.index for chat in chats])
        return self._folder / f"states-{stretch:06d}-{zlib.crc32(indices.tobytes()):08x}.npy"

    def _open(self, path: Path, chats: list[Chat]) -> None:
        file = np.load(path, mmap_mode="r")
        starts = np.concatenate(([0], np.cumsum([len(chat.ids) for chat in chats])))
        self._places.update((chat.index, (file, int(start))) for chat, start in zip(chats, starts, strict=False))


@torch.inference_mode()
def _read(model: Any, chats: list[Chat]) -> Iterator[npt.NDArray[np.int16]]:
    """States of each chat, (tokens, width), as the bits of bfloat16."""
    found: dict[int, npt.NDArray[np.int16]] = {}
    for batch in _batches(chats):
        ids = np.zeros((len(batch), max(len(chat.ids) for chat in batch)), np.int64)
        for row, chat in zip(ids, batch, strict=True):
            row[: len(chat.ids)] = chat.ids
        body = model.get_decoder()
        states = body(input_ids=torch.from_numpy(ids).to(model.device), use_cache=False).last_hidden_state
        bits = states.to(torch.bfloat16).cpu().view(torch.int16).numpy()
        found.update((chat.index, row[: len(chat.ids)].copy()) for chat, row in zip(batch, bits, strict=True))
    yield from (found[chat.index] for chat in chats)


def _batches(chats: list[Chat]) -> Iterator[list[Chat]]:
    """Chats of similar length, each batch of about as many tokens."""
    batch: list[Chat] = []
    for chat in sorted(chats, key=lambda chat: len(chat.ids)):
        if batch and len(chat.ids) * (len(batch) + 1) > _BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(chat)
    if batch:
        yield batch
