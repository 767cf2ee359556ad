"""From a prompt to the ids that target, drafts and baseline start from."""

import pytest
from tokenizer_makers import byte_level, with_bos

from specviz.errors import ConfigError
from specviz.text import encode_prompt, sequence_pieces

BOS_TEMPLATE = "{{ bos_token }}[{{ messages[0]['content'] }}]"
BARE_TEMPLATE = "[{{ messages[0]['content'] }}]"
DOUBLE_TEMPLATE = "{{ bos_token }}" + BOS_TEMPLATE


@pytest.mark.parametrize("template", [BOS_TEMPLATE, BARE_TEMPLATE, DOUBLE_TEMPLATE, None])
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("eos", [False, True])
def test_case_49_a_tokenizer_that_adds_a_start_token_gives_exactly_one(template, raw, eos):
    tokenizer = with_bos(byte_level(specials=["<s>", "</s>"], bos_token="<s>", eos_token="</s>"), eos)
    tokenizer.chat_template = template
    ids = encode_prompt(tokenizer, "test", raw=raw)
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.eos_token_id not in ids, "a prompt is to be continued, not ended"
    assert tokenizer.decode(ids[1:]) == ("test" if raw or template is None else "[test]")


def test_case_49_encoding_template_text_anew_would_give_two():
    tokenizer = with_bos(byte_level(specials=["<s>", "</s>"], bos_token="<s>", eos_token="</s>"))
    tokenizer.chat_template = BOS_TEMPLATE
    text = tokenizer.apply_chat_template([{"role": "user", "content": "test"}], tokenize=False)
    assert tokenizer(text)["input_ids"].count(tokenizer.bos_token_id) == 2


@pytest.mark.parametrize(
    ("template", "raw", "num_bos"),
    [(BARE_TEMPLATE, False, 0), (BOS_TEMPLATE, False, 1), (None, False, 0), (BOS_TEMPLATE, True, 0)],
)
def test_no_start_token_is_invented_where_the_tokenizer_adds_none(template, raw, num_bos):
    tokenizer = byte_level(specials=["<s>"], bos_token="<s>")
    tokenizer.chat_template = template
    assert encode_prompt(tokenizer, "test", raw=raw).count(tokenizer.bos_token_id) == num_bos


def test_a_start_token_that_is_also_a_chat_mark_stays_inside_the_template():
    tokenizer = with_bos(byte_level(specials=["<m>", "</m>"], bos_token="<m>", eos_token="</m>"))
    tokenizer.chat_template = "<m>user {{ messages[0]['content'] }}</m><m>assistant"
    ids = encode_prompt(tokenizer, "x", raw=False)
    assert [i for i, token in enumerate(ids) if token == tokenizer.bos_token_id] == [
        0,
        ids.index(tokenizer.eos_token_id) + 1,
    ]


def test_case_29_an_empty_raw_prompt_starts_from_the_start_token_or_is_refused():
    automatic = with_bos(byte_level(specials=["<s>", "</s>"], bos_token="<s>", eos_token="</s>"))
    manual = byte_level(specials=["<s>"], bos_token="<s>")
    for tokenizer in (automatic, manual):
        assert encode_prompt(tokenizer, "", raw=True) == [tokenizer.bos_token_id]
    with pytest.raises(ConfigError) as refused:
        encode_prompt(byte_level(), "", raw=True)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize("prompt", ["   ", "a", "\n", "🔥"])
def test_a_short_prompt_is_taken_as_it_is(prompt):
    tokenizer = byte_level()
    pieces = sequence_pieces(tokenizer, encode_prompt(tokenizer, prompt, raw=True))
    assert b"".join(piece.data for piece in pieces).decode() == prompt


def test_a_prompt_that_is_no_unicode_or_that_a_template_refuses_gets_a_sentence():
    with pytest.raises(ConfigError, match="surrogate"):
        encode_prompt(byte_level(), "a\ud800", raw=True)
    tokenizer = byte_level()
    tokenizer.chat_template = "{{ raise_exception('needs a system message') }}"
    with pytest.raises(ConfigError, match="needs a system message"):
        encode_prompt(tokenizer, "a", raw=False)
