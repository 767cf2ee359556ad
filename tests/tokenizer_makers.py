"""Small tokenizers of every style, built here, so that no test needs a download."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def wrap(backend, **more):
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **more)


def byte_level(specials=(), **more):
    """Every byte a token, then special tokens."""
    vocab = {char: i for i, char in enumerate(ALPHABET)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(specials))
    return wrap(backend, **more)


WORDS = ["▁", "▁Dear", "▁[", "Name", "],", "▁I", "▁hope", "e", "x"]


def metaspace(style="llama", specials=("<s>", "</s>"), **more):
    """SentencePiece conventions: a few words, and a token for every byte besides."""
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    vocab.update({word: 257 + i for i, word in enumerate(WORDS)})
    scores = [(token, -2.0 if token in WORDS else -9.0) for token in vocab]
    backend = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
    if style == "llama":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        stages = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        backend.decoder = decoders.Sequence(stages)
    elif style == "gemma":
        backend.normalizer = normalizers.Replace(" ", "▁")
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    backend.add_special_tokens(list(specials))
    return wrap(backend, bos_token="<s>", eos_token="</s>", **more)


def word_pieces():
    words = ["[UNK]", "[CLS]", "[SEP]", "the", "un", "##do", "##ing", ",", "'"]
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    return wrap(backend, unk_token="[UNK]", cls_token="[CLS]")


def with_bos(tokenizer, eos=False):
    """The same tokenizer, adding its start token by itself, and an end token where asked."""
    ends = {"bos": tokenizer.bos_token, "eos": tokenizer.eos_token}
    single = f"{ends['bos']} $A" + (f" {ends['eos']}" if eos else "")
    pairs = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ends.values()]
    template = processors.TemplateProcessing(single=single, pair=None, special_tokens=pairs)
    tokenizer.backend_tokenizer.post_processor = template
    return tokenizer
