"""From text to ids and back: prompts, the bytes of a token, streaming text, stop strings.

Owns: `encode_prompt`, `token_piece` and its plural forms, `Detokenizer`, `StopChecker`. Must not know models,
decoding or faces: the engine deals in ids, and a page draws pieces as it likes.

Tokens are bytes, not strings: one character may be spread over several tokens. All pieces of a text joined
are its bytes exactly, with no clean-up of spaces; text is made of bytes only where characters are whole.
"""

from __future__ import annotations

import codecs
import copy
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from specviz.errors import ConfigError
from specviz.trace import Piece

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_piece(tokenizer: PreTrainedTokenizerBase, token_id: int) -> Piece:
    """The bytes of one token as it stands inside a text; see `PieceReader`."""
    return PieceReader(tokenizer)(token_id)


def sequence_pieces(tokenizer: PreTrainedTokenizerBase, token_ids: Iterable[int]) -> list[Piece]:
    """The pieces of a text from its first token on: joined, without special ones, they are the whole text.

    A tokenizer that puts a space before the first word gets it taken off again, as its own `decode` does.
    """
    reader = PieceReader(tokenizer)
    pieces = [reader(token_id) for token_id in token_ids]
    first = next((i for i, piece in enumerate(pieces) if not piece.special), None)
    if reader.adds_first_space and first is not None:
        pieces[first] = Piece(pieces[first].data.removeprefix(b" "))
    return pieces


class PieceReader:
    """Reads ids as pieces; call it with an id. It looks at the tokenizer's decoder once.

    Knows byte-level BPE, SentencePiece styles (a mark for a space, `<0x..>` for a byte), WordPiece and word
    lists. Special tokens (end of text, chat marks) give their name, flagged; an added token that is not
    special is text. An id without a token, as padded vocabularies have, is special and named by its number.

    `adds_first_space` tells whether the piece of a first word begins with a space that the text has not.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._to_token: Callable[[int], str | None] = tokenizer.convert_ids_to_tokens  # type: ignore[assignment]
        self._added = tokenizer.added_tokens_decoder
        self._special_ids = frozenset(tokenizer.all_special_ids)
        self._stages = _decoder_stages(tokenizer)
        self.adds_first_space = any(_drops_first_space(stage) for stage in self._stages)

    def __call__(self, token_id: int) -> Piece:
        added = self._added.get(token_id)
        if added is not None:
            special = added.special or token_id in self._special_ids
            return Piece(added.content.encode(), special)
        token = self._to_token(token_id)
        if token is None:
            return Piece(f"<id {token_id}>".encode(), special=True)
        return Piece(self._decode(token), special=token_id in self._special_ids)

    def _decode(self, token: str) -> bytes:
        for stage in self._stages:
            decoded = _apply(stage, token)
            if isinstance(decoded, bytes):
                return decoded
            token = decoded
        return token.encode(errors="replace")


def _decoder_stages(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """The tokenizer's decoder as a flat list of the `tokenizers` library's own descriptions."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # one written in Python: SentencePiece's conventions are the common ones
        return [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}, {"type": "ByteFallback"}]
    if backend.decoder is None:
        return [{"type": "Words"}]
    description = json.loads(backend.decoder.__getstate__())
    return list(description.get("decoders", [description]))


def _apply(stage: dict[str, Any], token: str) -> str | bytes:
    """What one stage makes of one token; bytes end the decoding. Stages that join tokens change nothing here."""
    match stage:
        case {"type": "ByteLevel"}:
            return _from_byte_alphabet(token)
        case {"type": "ByteFallback"} if found := _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(found[1])
        case {"type": "Metaspace", "replacement": mark}:
            return token.replace(mark, " ")
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return token.replace(old, new)
        case {"type": "WordPiece", "prefix": prefix}:
            return token[len(prefix) :] if token.startswith(prefix) else " " + token
        case {"type": "BPEDecoder", "suffix": suffix}:
            return token[: -len(suffix)] + " " if token.endswith(suffix) else token
        case {"type": "Words"}:
            return " " + token
    return token


def _drops_first_space(stage: dict[str, Any]) -> bool:
    match stage:
        case {"type": "Metaspace", "prepend_scheme": scheme}:
            return bool(scheme != "never")
        case {"type": "Strip", "content": " ", "start": start}:
            return bool(start > 0)
    return stage.get("type") in ("WordPiece", "Words")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: every byte as one printable character, bytes that print as themselves."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printing)]
    return {chr(byte): byte for byte in printing} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _from_byte_alphabet(token: str) -> bytes:
    """A token outside the alphabet (added by hand) is text as it stands."""
    if all(char in _BYTE_OF for char in token):
        return bytes(_BYTE_OF[char] for char in token)
    return token.encode(errors="replace")


class Detokenizer:
    """Pieces in, text out, whole characters only.

    Bytes that begin a character wait in `pending` for the rest of it; bytes that can never become one are
    left out, so no replacement mark is ever made here. Special pieces give no text. With `drop_first_space`
    a space in front of the very first text is taken off (see `PieceReader.adds_first_space`).
    """

    def __init__(self, *, drop_first_space: bool = False) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._drop_space = drop_first_space

    def push(self, piece: Piece) -> str:
        """The text that this piece completes, possibly empty."""
        if piece.special:
            return ""
        data = piece.data.removeprefix(b" ") if self._drop_space else piece.data
        self._drop_space = False
        return self._decoder.decode(data)

    @property
    def pending(self) -> bytes:
        """Bytes of a character that is not whole yet."""
        return self._decoder.getstate()[0]

    def copy(self) -> Detokenizer:
        """An independent one in the same state."""
        twin = Detokenizer(drop_first_space=self._drop_space)
        twin._decoder.setstate(self._decoder.getstate())
        return twin


class StopChecker:
    """Finds stop strings in new text, also where they are spread over several tokens.

    The rule: the token that completes a stop string is the last token. It is kept whole, so the text ends
    with that token: with the stop string and whatever else the token holds behind it. Ids, chips, counts and
    text all end there. The prompt is not searched. A special token has no text, but stops where a stop string
    is its exact name.
    """

    def __init__(self, stops: Sequence[str], piece: Callable[[int], Piece]) -> None:
        self._stops = tuple(stops)
        self._piece = piece
        self._keep = max(map(len, self._stops), default=1) - 1
        self._text = Detokenizer()
        self._tail = ""

    def push(self, token_id: int) -> bool:
        """Take the next emitted token; true where it is the last one."""
        if not self._stops:
            return False
        piece = self._piece(token_id)
        if piece.special:
            return piece.data.decode(errors="ignore") in self._stops
        text = self._tail + self._text.push(piece)
        # The tail is shorter than the longest stop string: what it held alone was searched before.
        self._tail = text[-self._keep :] if self._keep else ""
        return any(stop in text for stop in self._stops)

    def copy(self) -> StopChecker:
        """An independent one in the same state, to look ahead with."""
        twin = copy.copy(self)
        twin._text = self._text.copy()
        return twin


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str, *, raw: bool) -> list[int]:
    """The ids that a run starts from; target, drafts and baseline all get these.

    Chat mode puts the prompt as the user's message into the tokenizer's chat template and opens the answer; a
    tokenizer without a template falls back to raw text. In both modes a tokenizer that adds a start token
    (BOS) by itself gives exactly one, whether or not its template writes one too; where it adds none, none
    is invented. An empty raw prompt starts from the start token if there is one at all.

    Raises:
        ConfigError: text that is not Unicode, a template that refuses the prompt, or nothing to start from.
    """
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise ConfigError("The prompt holds half a surrogate pair, which is no Unicode text; remove it.") from None
    chat = not raw and bool(tokenizer.chat_template)
    text = _chat_text(tokenizer, prompt) if chat else prompt
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    bos_id = tokenizer.bos_token_id
    if bos_id is not None and _adds_bos(tokenizer):
        num_bos = next((i for i, token_id in enumerate(ids) if token_id != bos_id), len(ids))
        ids = [bos_id, *ids[num_bos:]]
    if not ids and bos_id is not None:
        ids = [bos_id]
    if not ids:
        raise ConfigError("The prompt is empty and this tokenizer has no start token; type at least a word.")
    return list(ids)


def _chat_text(tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    messages = [{"role": "user", "content": prompt}]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a foreign program: it may raise anything
        raise ConfigError(f"The model's chat template refuses the prompt ({error}); try raw text.") from error


def _adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer itself begins a text with its start token."""
    return bool(tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id])
