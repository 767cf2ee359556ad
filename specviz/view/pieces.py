"""Bytes of tokens as something the browser can show.

Owns: how a token is described to the page: the characters it completes, and a label for bytes that are no
character yet. Must not know tokenizers, models or HTML; all text here is for `textContent`.
"""

from __future__ import annotations

from typing import Any

from specviz.text import Detokenizer
from specviz.trace import Piece


def hex_label(data: bytes) -> str:
    """Bytes as people write them: `F0 9F`."""
    return data.hex(" ").upper()


def describe(piece: Piece) -> dict[str, Any]:
    """A row of the page's table id → piece: `t` its text standing alone, `b` a label where its bytes are
    not whole characters alone, `s` 1 for a special token, whose name is then `t`."""
    if piece.special:
        return {"t": piece.data.decode(errors="backslashreplace"), "s": 1}
    text = Detokenizer().push(piece)
    return {"t": text} if text.encode() == piece.data else {"t": text, "b": hex_label(piece.data)}


def in_context(piece: Piece, before: Detokenizer) -> tuple[dict[str, str], Detokenizer]:
    """What differs from `describe` when the token follows the text that `before` has read.

    Returns `x`, the characters completed here, and `b` where the token ends inside a character or gives
    none; both only where needed. The second value has read the token too; `before` is left as it was.
    """
    after = before.copy()
    text = after.push(piece)
    if piece.special or not (before.pending or after.pending):
        return {}, after
    found = {"x": text}
    if after.pending or not text:
        found["b"] = hex_label(piece.data)
    return found, after
