"""The distillation data on disk: chats that a target wrote, with its top log-probabilities.

Owns: the shard format, atomic writing, reading back in chat order. A shard holds whatever chats
finished since the last one; the chat's index is its name, so a kill loses only chats not yet in a
shard and a second run writes exactly the missing ones. Must not know models, tokenizers or training.
"""

import errno
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from specviz.errors import ConfigError

PART = ".part-"
"""How the names of files begin that are not whole yet; a kill may leave one behind."""
TOP = 16
"""How many of the target's log-probabilities are kept per position."""


@dataclass(frozen=True, eq=False)
class Chat:
    """One conversation: `ids` (n,), and for positions `first_row`..n-1 what the target expected there.

    `top_ids` and `top_logps` have shape (n - first_row, TOP), likeliest first, log-probabilities at
    temperature 1. The target answers from `answer_start` on, at `temperature`. A chat whose user turn
    was degenerate keeps its index and has no ids.
    """

    index: int
    held_out: bool
    temperature: float
    first_row: int
    answer_start: int
    ids: npt.NDArray[np.int64]
    top_ids: npt.NDArray[np.int64]
    top_logps: npt.NDArray[np.float16]

    @property
    def num_answer(self) -> int:
        """Tokens that the target answered, its end-of-sequence token included."""
        return max(0, len(self.ids) - self.answer_start)

    @property
    def user_turn(self) -> bytes:
        """What was asked, as comparable bytes: two chats that share it must not be split apart."""
        return self.ids[self.first_row : self.answer_start].astype(np.int64).tobytes()


def dropped(index: int) -> Chat:
    """The record of a chat that was not worth keeping."""
    none = np.zeros((0, TOP))
    return Chat(index, False, 0.0, 0, 0, np.zeros(0, np.int64), none.astype(np.int64), none.astype(np.float16))


def write_atomic(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes a file through a temporary one beside it, so that no reader sees half of it.

    Raises ConfigError when the disk is full or the folder cannot be written.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=PART)
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)  # gone already where all went well


def storage_error(path: Path, error: OSError) -> ConfigError:
    """The sentence for a file that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ConfigError(
            f"The disk is full: {path} could not be written; what was written before is kept, "
            "so free some space and run the same command again."
        )
    return ConfigError(f"{path} cannot be written ({error.strerror}); choose another folder.")


def write_shard(folder: Path, chats: Iterable[Chat], vocab_size: int) -> None:
    """Appends finished chats as one file. Ids take two bytes where the vocabulary allows."""
    kept = sorted(chats, key=lambda chat: chat.index)
    if not kept:
        return
    id_type = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    arrays = {
        "index": np.array([chat.index for chat in kept], np.int64),
        "held_out": np.array([chat.held_out for chat in kept], np.bool_),
        "temperature": np.array([chat.temperature for chat in kept], np.float32),
        "first_row": np.array([chat.first_row for chat in kept], np.int32),
        "answer_start": np.array([chat.answer_start for chat in kept], np.int32),
        "length": np.array([len(chat.ids) for chat in kept], np.int32),
        "ids": np.concatenate([chat.ids for chat in kept]).astype(id_type),
        "top_ids": np.concatenate([chat.top_ids for chat in kept]).astype(id_type),
        "top_logps": np.concatenate([chat.top_logps for chat in kept]).astype(np.float16),
    }
    name = f"shard-{kept[0].index:08d}-{zlib.crc32(arrays['index'].tobytes()):08x}.npz"
    write_atomic(folder / name, lambda file: np.savez(file, allow_pickle=False, **arrays))


def finished(folder: Path) -> dict[int, int]:
    """Index → answer tokens of each chat on disk (0 for dropped ones)."""
    done: dict[int, int] = {}
    for path in sorted(folder.glob("shard-*.npz")):
        with np.load(path) as shard:
            tokens = np.maximum(0, shard["length"] - shard["answer_start"])
            done.update(zip(shard["index"].tolist(), tokens.tolist(), strict=True))
    return done


def read_chats(folder: Path, max_answer_tokens: int | None = None) -> list[Chat]:
    """The kept chats in order of their index, cut once they hold `max_answer_tokens`.

    The cut depends on the indices alone, so data that was interrupted and data that was not are equal.
    """
    found: dict[int, Chat] = {}
    for path in sorted(folder.glob("shard-*.npz")):
        with np.load(path) as shard:
            found.update((chat.index, chat) for chat in _unpack(dict(shard)))
    chats: list[Chat] = []
    total = 0
    for index in sorted(found):
        if max_answer_tokens is not None and total >= max_answer_tokens:
            break
        if len(found[index].ids):
            chats.append(found[index])
            total += found[index].num_answer
    return chats


def _unpack(shard: dict[str, npt.NDArray[Any]]) -> Iterable[Chat]:
    starts = np.concatenate([[0], np.cumsum(shard["length"])])
    num_rows = np.maximum(0, shard["length"] - shard["first_row"])
    row_starts = np.concatenate([[0], np.cumsum(num_rows)])
    for i in range(len(starts) - 1):
        ids, rows = slice(starts[i], starts[i + 1]), slice(row_starts[i], row_starts[i + 1])
        yield Chat(
            index=int(shard["index"][i]),
            held_out=bool(shard["held_out"][i]),
            temperature=float(shard["temperature"][i]),
            first_row=int(shard["first_row"][i]),
            answer_start=int(shard["answer_start"][i]),
            ids=shard["ids"][ids].astype(np.int64),
            top_ids=shard["top_ids"][rows].astype(np.int64),
            top_logps=shard["top_logps"][rows].astype(np.float16),
        )
