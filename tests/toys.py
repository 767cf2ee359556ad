"""Toy models behind the real interface, an oracle that shares no code with the engine, and ways to run them.

Random ones are transformers' own classes cut to size. Scripted ones (`Scripted`) say what a function of the
context says; they read that context from the cache and the mask they are given, so a wrong mask, position,
or leftover of a rejected token changes what they see.
"""

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch
from torch import nn
from transformers import (
    GPT2Config,
    LlamaConfig,
    MinNewTokensLengthLogitsProcessor,
    MistralConfig,
    RepetitionPenaltyLogitsProcessor,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from specviz import sampling
from specviz.config import RunConfig
from specviz.decode import Surroundings, autoregress, race, speculate
from specviz.metrics import audit
from specviz.models import LoadedModel
from specviz.runner import Runner
from specviz.sampling import Sampler, one_hot
from specviz.trace import Piece, RunFinished, RunStarted, Step, Trace
from specviz.verify import ROOT, TokenTree

P9 = (5, 6, 7, 8, 9, 10, 11, 7, 8)
VOCAB = 97
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def build(config, *, seed: int = 0, attention: str = "eager", dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).eval().to(dtype).requires_grad_(False)
    model.set_attn_implementation(attention)
    return model


def loaded(model: nn.Module, name: str = "toy", eos: Sequence[int] = (), tokenizer=None) -> LoadedModel:
    return LoadedModel(name, model, tokenizer, frozenset(eos), pass_times={1: 0.01})


def tiny(**more) -> LoadedModel:
    return loaded(build(LlamaConfig(**{**SHAPE, **more})), "TINY")


def other(**more) -> LoadedModel:
    shape = {**SHAPE, "num_hidden_layers": 1, "hidden_size": 32, **more}
    return loaded(build(LlamaConfig(**shape), seed=1), "OTHER")


def mistral() -> LoadedModel:
    """Every layer looks back over 8 positions."""
    return loaded(build(MistralConfig(**SHAPE, sliding_window=8)), "MISTRAL")


def gpt2(num_positions: int = 64) -> LoadedModel:
    """Learned positions: one beyond the last is an index error."""
    sizes = {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": num_positions}
    ids = {"bos_token_id": None, "eos_token_id": None}
    return loaded(build(GPT2Config(**sizes, **ids, initializer_range=0.3)), "GPT2")


def noisy(target: LoadedModel, scale: float) -> LoadedModel:
    """The target's weights plus noise: a draft that agrees partly."""
    model = copy.deepcopy(target.model)
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        parameter += scale * torch.randn(parameter.shape, generator=generator)
    return loaded(model, f"NOISY {scale}")


class Scripted(nn.Module):
    """Says `next_logits(context)`, a list of numbers, behind every row; counts its passes.

    The context of a row is what its mask shows it: ids are kept as keys, positions as values of the real cache.
    """

    def __init__(self, next_logits: Callable[[tuple[int, ...]], Sequence[float]], vocab_size: int) -> None:
        super().__init__()
        self.next_logits = next_logits
        self.num_passes = 0
        self.on_pass: Callable[[], None] = lambda: None
        self.weight = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.config = SimpleNamespace(
            vocab_size=vocab_size, num_hidden_layers=1, max_position_embeddings=0, _attn_implementation="eager"
        )

    def forward(
        self, *, input_ids, position_ids, attention_mask, cache, use_cache, logits_to_keep, output_hidden_states
    ):
        assert use_cache
        self.num_passes += 1
        self.on_pass()
        keys, values = (ids.float()[:, None, :, None] for ids in (input_ids, position_ids))
        keys, values = (kept[0, 0, :, 0].long() for kept in cache.update(keys, values, 0))
        contexts = [self._context(row, keys, values) for row in attention_mask[0, 0]]
        logits = torch.tensor([self.next_logits(context) for context in contexts[-logits_to_keep:]])
        hidden = (torch.zeros(1, len(contexts), 4),) if output_hidden_states else None
        return SimpleNamespace(logits=logits[None], hidden_states=hidden)

    def _context(self, mask_row, keys, positions):
        visible = mask_row == 0
        order = positions[visible].argsort()
        assert positions[visible][order].tolist() == list(range(len(order))), "not a root path"
        return tuple(keys[visible][order].tolist())


def scripted(next_logits, vocab_size: int = 4, name: str = "SCRIPT") -> LoadedModel:
    return loaded(Scripted(next_logits, vocab_size), name)


def table(row: Sequence[float], name: str = "TABLE") -> LoadedModel:
    """The same probabilities behind every context."""
    logits = logits_of(row)
    return scripted(lambda _: logits, len(row), name)


def script(token_ids: Sequence[int], vocab_size: int, prompt_len: int = 1, name: str = "SCRIPT") -> LoadedModel:
    """Greedily says the list, whatever else happens, then id 0."""

    def next_logits(context):
        place = len(context) - prompt_len
        said = token_ids[place] if 0 <= place < len(token_ids) else 0
        return [5.0 if token_id == said else 0.0 for token_id in range(vocab_size)]

    return scripted(next_logits, vocab_size, name)


def logits_of(row: Sequence[float]) -> list[float]:
    return [math.log(p) if p > 0 else -1e4 for p in row]


@torch.inference_mode()
def plain_logits(target: LoadedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """The model called directly on the whole text, without a cache: logits of shape (tokens, vocab)."""
    if isinstance(target.model, Scripted):
        prefixes = (tuple(token_ids[: i + 1]) for i in range(len(token_ids)))
        return torch.tensor([target.model.next_logits(prefix) for prefix in prefixes])
    return target.model(torch.tensor([list(token_ids)]), use_cache=False).logits[0]


def plain_greedy(
    target: LoadedModel, prompt_ids: Sequence[int], num_new: int, *, penalty: float = 1.0, min_new: int = 0
) -> list[int]:
    """The oracle: greedy decoding by whole forwards and transformers' own processors."""
    processors = [RepetitionPenaltyLogitsProcessor(penalty)] if penalty != 1 else []
    if min_new and target.eos_ids:
        processors.append(MinNewTokensLengthLogitsProcessor(len(prompt_ids), min_new, sorted(target.eos_ids)))
    text = list(prompt_ids)
    for _ in range(num_new):
        scores = plain_logits(target, text)[-1:]
        for processor in processors:
            scores = processor(torch.tensor([text]), scores)
        text.append(int(scores.argmax()))
        if text[-1] in target.eos_ids:
            break
    return text[len(prompt_ids) :]


class Bushy:
    """A draft model's tree: under every node its `width` best tokens, as sure choices, down to `depth`.

    With `sampled` the children are drawn without replacement instead, each from what the earlier ones left.
    """

    wants_hidden = False

    def __init__(self, draft: LoadedModel, width: int, depth: int, *, sampled: bool = False) -> None:
        self.names = (draft.name,)
        self._draft, self._width, self._depth, self._sampled = draft, width, depth, sampled

    def start(self, context_ids, sampler: Sampler, cancelled) -> None:
        del context_ids, cancelled
        self._sampler = sampler

    def propose(self, context_ids, budget, generator) -> TokenTree:
        tree, level = TokenTree(), [ROOT]
        for _ in range(self._depth):
            parents, level = level, []
            for parent in parents:
                num = min(self._width, budget - len(tree))
                level += self._children(tree, parent, context_ids, num, generator)
        return tree

    def _children(self, tree, parent, context_ids, num, generator):
        path = tree.path(parent)
        shaped = self._sampler.shape(plain_logits(self._draft, [*context_ids, *path])[-1:], [path])
        if not self._sampled:
            best = shaped[0].topk(num).indices.tolist()
            return [tree.add(i, parent, one_hot(i, self._sampler), shown=shaped.softmax(-1)[0]) for i in best]
        row, children = self._sampler.probabilities(shaped)[0], []
        for _ in range(min(num, int((row > 0).sum()))):
            token_id, _, _ = sampling.draw(row, sampling.uniform(generator))
            children.append(tree.add(token_id, parent, row))
            row = row.index_fill(0, torch.tensor(token_id), 0.0)
            row = row / row.sum()
        return children

    def observe(self, seen) -> None:
        pass


class Copies:
    """A draft that always proposes the same ids, as sure choices."""

    wants_hidden = False
    names = ("copies",)

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._ids = token_ids

    def start(self, context_ids, sampler, cancelled) -> None:
        del context_ids, cancelled
        self._sampler = sampler

    def propose(self, context_ids, budget, generator) -> TokenTree:
        del context_ids, generator
        tree = TokenTree()
        for token_id in self._ids[:budget]:
            tree.add(token_id, len(tree) - 1, one_hot(token_id, self._sampler))
        return tree

    def observe(self, seen) -> None:
        pass


def settings(**more) -> RunConfig:
    return RunConfig(**{"draft_len": 4, "max_new_tokens": 24, **more})


def play(target, source=None, prompt_ids=P9, *, baseline=False, around=None, pieces=None, **more) -> Trace:
    """Run to the end and return the trace, audited: with a source it is speculated, else decoded plainly.

    `baseline` races both. `around` holds what `Surroundings` takes.
    """
    config = settings(**more)
    around = Surroundings(**(around or {}))
    lanes = []
    if baseline or source is None:
        lanes.append(autoregress(target, prompt_ids, config, around))
    if source is not None:
        lanes.append(speculate(target, source, prompt_ids, config, around))
    trace = Trace(config=config.to_json(), events=list(race(*lanes)))
    trace.pieces = {i: (pieces or {}).get(i, Piece(b"?")) for i in trace.ids_used()}
    check(trace)
    return trace


def check(trace: Trace) -> None:
    """What must hold for every trace whatever made it."""
    assert audit(trace) == []
    assert Trace.from_json(trace.to_json()) == trace
    for lane in ("speculative", "baseline"):
        if (finished := trace.finished(lane)) and finished.reason != "error":
            assert finished.num_tokens <= trace.config["max_new_tokens"]


def said(trace: Trace) -> list[int]:
    """The ids of the speculative lane, or of the plain one where it ran alone."""
    return trace.token_ids("speculative" if trace.started("speculative") else "baseline")


def ending(trace: Trace) -> str:
    return trace.finished("speculative" if trace.started("speculative") else "baseline").reason


def timeless(events: Sequence[RunStarted | Step | RunFinished]) -> list:
    """The events without their seconds, to compare two runs."""
    zero = {"draft_s", "verify_s", "total_s", "clock_s", "prefill_s", "decode_s"}
    return [
        dataclasses.replace(event, **{f.name: 0.0 for f in dataclasses.fields(event) if f.name in zero})
        for event in events
    ]


class FakeClock:
    """Stands still unless somebody moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def ticking(self, model: LoadedModel, seconds: float | Callable[[int], float]) -> LoadedModel:
        """Make every pass of a scripted model take so long."""
        module = model.model

        def tick():
            self.now += seconds(module.num_passes) if callable(seconds) else seconds

        module.on_pass = tick
        return model


def fresh_cache(model: LoadedModel, token_ids: Sequence[int]) -> list[torch.Tensor]:
    """Keys and values of a text that was fed from scratch."""
    runner = Runner(model)
    runner.prefill(token_ids)
    return runner.cache.stored(range(len(token_ids)))


def texts_said_in_part(target: LoadedModel) -> dict[str, list[int]]:
    """References for P9: one that the target says for a while, one from which it goes astray and back."""
    right = plain_greedy(target, P9, 24)
    return {"right": [*P9, *right[:12], 3, 4], "astray": [*P9, *right[:4], 1, *right[5:9], 2, *right[9:]]}
