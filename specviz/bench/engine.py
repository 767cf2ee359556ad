"""Measurements of the engine: bookkeeping, plain decoding against transformers, numerics, pass times.

Owns: these sections. Must not know how rows are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from specviz.bench.bench import Bench, Goal, Row
from specviz.bench.rounds import Spread, in_turn, ratios
from specviz.models import LoadedModel
from specviz.runner import Runner
from specviz.runner.calibrate import BLOCK_SIZES
from specviz.trace import Trace

CONTEXTS = (256, 2000)
SHORT_CONTEXT = 256
NUMERICS_ROWS = (1, 4, 8)


def bookkeeping(bench: Bench) -> Iterator[Row]:
    """Share of a step that is neither drafting nor verifying: sampling, the rule, and keeping the full trace."""
    for draft in bench.drafts:
        for name, settings, goal in (
            ("temperature 0", {"temperature": 0.0}, Goal(0.05, at_most=True)),
            ("temperature 1", {"temperature": 1.0}, Goal(0.10, at_most=True)),
            ("temperature 1, top-p 0.95", {"temperature": 1.0, "top_p": 0.95}, Goal(0.10, at_most=True)),
        ):
            lane: dict[str, Any] = {"drafts": (draft,), "baseline": False, **settings}
            bench.decode(bench.prompts[0], max_new_tokens=8, **lane)  # warm-up
            shares = [outside_share(bench.decode(prompt, **lane)) for prompt in bench.chosen_prompts]
            yield Row("bookkeeping", f"{draft}, {name}", "%", Spread.of(shares), goal)


def outside_share(trace: Trace) -> float:
    """Decode seconds that went into neither drafting nor verifying, of all; the first step is warm-up."""
    steps = trace.steps("speculative")[1:] or trace.steps("speculative")
    total_s = sum(step.total_s for step in steps)
    return 1 - sum(step.draft_s + step.verify_s for step in steps) / total_s


def against_transformers(bench: Bench) -> Iterator[Row]:
    """Plain greedy decoding here and by `model.generate`: same weights, prompt, dtype and number of tokens."""
    loaded = bench.load(bench.target)
    model, _ = bench.load_plain(bench.target)
    model = model.to(device=loaded.device, dtype=loaded.dtype)
    model.generation_config.eos_token_id = None  # both run to the same number of tokens
    prompts, num_tokens = bench.prompts, bench.num_tokens

    def ours(index: int) -> float:
        start = time.perf_counter()
        bench.decode(prompts[index % len(prompts)], drafts=("none",), temperature=0.0)
        return num_tokens / (time.perf_counter() - start)

    def theirs(index: int) -> float:
        ids = _prompt_ids(bench, prompts[index % len(prompts)])
        start = time.perf_counter()
        _generate(model, ids, num_tokens)
        return num_tokens / (time.perf_counter() - start)

    rates = in_turn({"specviz": ours, "transformers": theirs}, bench.num_rounds)
    for name, values in rates.items():
        yield Row("plain decoding", name, "tokens/s", Spread.of(values), note="greedy, prompt pass included")
    factor = Spread.of(ratios(rates["specviz"], rates["transformers"]))
    yield Row("plain decoding", "specviz ÷ transformers", "×", factor, Goal(1.2, at_most=False))


def _prompt_ids(bench: Bench, prompt: str) -> torch.Tensor:
    """The ids that a run of ours starts from, shape (1, tokens)."""
    trace = bench.decode(prompt, drafts=("none",), max_new_tokens=1)
    started = trace.started("baseline")
    assert started is not None
    return torch.tensor([started.prompt_ids])


@torch.inference_mode()
def _generate(model: Any, ids: torch.Tensor, num_tokens: int) -> None:
    ids = ids.to(model.device)
    mask = torch.ones_like(ids)
    made = model.generate(ids, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False, pad_token_id=0)
    assert made.shape[1] == ids.shape[1] + num_tokens


def numerics(bench: Bench) -> Iterator[Row]:
    """What bit-exact blocks cost: pass times of exact and fast numerics, in turn, by rows and context."""
    loaded = {kind: bench.load(bench.target, numerics=kind) for kind in ("exact", "fast")}
    for context in CONTEXTS:
        runners = {kind: filled(model, context) for kind, model in loaded.items()}
        for rows in NUMERICS_ROWS:
            jobs = {kind: pass_job(runner, rows) for kind, runner in runners.items()}
            times = in_turn(jobs, num_passes(bench), num_warm_up=2)
            where = f"{rows} row{'s' * (rows > 1)} at {context:,} tokens"
            for kind, seconds in times.items():
                yield Row("numerics", f"{where}, {kind}", "ms", Spread.of([1000 * s for s in seconds]))
            cost = [ratio - 1 for ratio in ratios(times["exact"], times["fast"])]
            goal = Goal(0.05, at_most=True) if context == SHORT_CONTEXT else None
            yield Row(
                "numerics", f"{where}, cost of exact", "%", Spread.of(cost), goal, _exactness(loaded["exact"])
            )


def _exactness(loaded: LoadedModel) -> str:
    return "" if loaded.numerics == "exact" else "exact numerics need bfloat16 on a CPU; both are fast here"


def pass_times(bench: Bench) -> Iterator[Row]:
    """One target pass by block size: what verifying costs, and v, a block's time over a single token's."""
    runner = filled(bench.load(bench.target), SHORT_CONTEXT)
    jobs = {str(size): pass_job(runner, size) for size in BLOCK_SIZES}
    times = in_turn(jobs, num_passes(bench), num_warm_up=2)
    for size, seconds in times.items():
        name = f"block of {size}"
        yield Row("pass times", name, "ms", Spread.of([1000 * s for s in seconds]), note="at 256 tokens")
        if size != "1":
            yield Row("pass times", f"{name} ÷ block of 1", "×", Spread.of(ratios(seconds, times["1"])))


def num_passes(bench: Bench) -> int:
    """Passes to time of each kind."""
    return 6 if bench.quick else 30


def filled(loaded: LoadedModel, context: int) -> Runner:
    """A runner with `context` committed tokens, or as many as the model has positions for a block behind."""
    if loaded.context_len:
        context = min(context, loaded.context_len - max(BLOCK_SIZES))
    runner = Runner(loaded, capacity=context + 64)
    runner.prefill([(37 * i + 11) % loaded.vocab_size for i in range(context)])
    return runner


def pass_job(runner: Runner, rows: int, parents: Sequence[int] | None = None) -> Callable[[int], float]:
    """Seconds of one pass over `rows` tokens that is then forgotten: a chain, or the tree that `parents` make."""

    def job(index: int) -> float:
        del index
        start = time.perf_counter()
        runner.forward([11] * rows, parents).logits[0, 0].item()  # reading a number waits for a GPU
        seconds = time.perf_counter() - start
        runner.keep([])
        return seconds

    return job
