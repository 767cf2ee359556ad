"""What each draft gains by category of prompts, raced against plain decoding: the long measurement.

Owns: the order of the work, what is kept of each race, going on after a kill. Must not know how results are shown.

Prompts are taken round the categories, the drafts in turn, another one first each time, so that a measurement that
was cut short is balanced and what slows the machine for a while slows all alike.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from specviz.bench.bench import Bench
from specviz.bench.machine import machine
from specviz.bench.rounds import rotated
from specviz.bench.tables import NAME as TABLE_NAME
from specviz.bench.tables import format_categories
from specviz.distill.store import write_atomic
from specviz.errors import ConfigError
from specviz.metrics import summarize
from specviz.prompts import Prompt, bundled
from specviz.run import versions
from specviz.trace import Trace

TEMPERATURES = (0.0, 1.0)
NUM_TOKENS = 128
JSON_NAME = "drafts.json"
Say = Callable[[str, float | None], None]


@dataclass(frozen=True, kw_only=True)
class Race:
    """One prompt decoded with a draft and without, in turn. Ratios are None where nothing was drafted.

    `draft_ratio` is c, the draft's seconds per node ÷ a plain pass; `verify_ratio` v, our pass ÷ a plain one.
    `identical` tells at temperature 0 whether both texts are the same.
    """

    prompt: str
    category: str
    draft: str
    temperature: float
    tokens: int
    passes: int
    speedup: float | None
    tokens_per_pass: float | None
    nodes_per_pass: float
    draft_ratio: float | None
    verify_ratio: float | None
    identical: bool | None


@dataclass(frozen=True)
class Asked:
    """One turn of a prompt as it is decoded: a whole conversation in the model's template where `raw`."""

    id: str
    category: str
    text: str
    raw: bool


def measure_categories(
    bench: Bench, folder: Path, *, limit_per_category: int | None = None, say: Say = lambda *_: None
) -> dict[str, Any]:
    """Race every draft over the bundled prompts; the report, which is also in `folder` after every prompt.

    The same call goes on where an unfinished one with the same settings was cut.

    Raises:
        ConfigError: nothing to measure, prompts that cannot be read, or a folder that cannot be written.
    """
    if not bench.drafts:
        raise ConfigError("There is no draft to race; name some, say --drafts mix,tiny.")
    if limit_per_category is not None and limit_per_category < 1:
        raise ConfigError(f"--limit-per-category {limit_per_category} is out of range; give 1 or more.")
    settings = {
        "target": bench.target,
        "drafts": list(bench.drafts),
        "limit_per_category": limit_per_category,
        "num_tokens": NUM_TOKENS,
    }
    report = _unfinished(folder / JSON_NAME, settings) or {
        "machine": machine(), "versions": versions(), "settings": settings, "finished": False, "races": [],
    }  # fmt: skip
    prompts = round_robin(bundled(), limit_per_category)
    for draft in bench.drafts:
        bench.decode(prompts[0].turns[0], drafts=(draft,), max_new_tokens=8)  # loading and first calls
    for place, prompt in enumerate(prompts):
        say(f"Racing over {prompt.id}", place / len(prompts))
        if all(race["prompt"].split("/")[0] != prompt.id for race in report["races"]):
            order = rotated(bench.drafts, place)
            report["races"] += [dataclasses.asdict(race) for race in _races(bench, prompt, order)]
            report["finished"] = place + 1 == len(prompts)
            _keep(folder, report)
    return report


def round_robin(prompts: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """The first prompt of every category, then the second of each, and so on; at most `limit` of each."""
    categories = dict.fromkeys(prompt.category for prompt in prompts)
    lists = ([prompt for prompt in prompts if prompt.category == name][:limit] for name in categories)
    return [prompt for prompt in chain.from_iterable(zip_longest(*lists)) if prompt is not None]


def _unfinished(path: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The report of the same measurement, where it was cut short."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = isinstance(report, dict) and report.get("settings") == settings
    return report if same and not report.get("finished") else None


def _keep(folder: Path, report: dict[str, Any]) -> None:
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    write_atomic(folder / JSON_NAME, lambda file: file.write(text.encode()))
    write_atomic(folder / TABLE_NAME, lambda file: file.write(format_categories(report).encode()))


def _races(bench: Bench, prompt: Prompt, drafts: Sequence[str]) -> Iterator[Race]:
    for asked in _turns(bench, prompt):
        for temperature in TEMPERATURES:
            for draft in drafts:
                yield _race(bench, asked, draft, temperature)


def _turns(bench: Bench, prompt: Prompt) -> Iterator[Asked]:
    """Each turn behind the turns before it, answered by the target alone at temperature 0."""
    yield Asked(prompt.id, prompt.category, prompt.turns[0], raw=False)
    answered: list[dict[str, str]] = []
    for number, (turn, before) in enumerate(zip(prompt.turns[1:], prompt.turns, strict=False), start=2):
        answered.append(_user(before))
        answered.append({"role": "assistant", "content": _answer(bench, answered)})
        yield Asked(
            f"{prompt.id}/{number}", prompt.category, _templated(bench, [*answered, _user(turn)]), raw=True
        )


def _user(turn: str) -> dict[str, str]:
    return {"role": "user", "content": turn}


def _templated(bench: Bench, messages: list[dict[str, str]]) -> str:
    tokenizer = bench.load(bench.target).tokenizer
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def _answer(bench: Bench, messages: list[dict[str, str]]) -> str:
    trace = bench.decode(
        _templated(bench, messages), raw=True, drafts=("none",), temperature=0.0,
        max_new_tokens=NUM_TOKENS, ignore_eos=False,
    )  # fmt: skip
    pieces = (trace.pieces[token_id] for token_id in trace.token_ids("baseline"))
    return b"".join(piece.data for piece in pieces if not piece.special).decode(errors="ignore")


def _race(bench: Bench, asked: Asked, draft: str, temperature: float) -> Race:
    trace = bench.decode(
        asked.text, raw=asked.raw, drafts=(draft,), temperature=temperature,
        max_new_tokens=NUM_TOKENS, ignore_eos=False,
    )  # fmt: skip
    return _told(trace, asked, draft, temperature)


def _told(trace: Trace, asked: Asked, draft: str, temperature: float) -> Race:
    summary = summarize(trace)
    return Race(
        prompt=asked.id,
        category=asked.category,
        draft=draft,
        temperature=temperature,
        tokens=summary.tokens,
        passes=summary.passes,
        speedup=summary.speedup,
        tokens_per_pass=summary.tokens_per_pass,
        nodes_per_pass=summary.drafted / max(1, summary.passes),
        draft_ratio=summary.draft_target_ratio,
        verify_ratio=summary.verify_ratio,
        identical=summary.identical,
    )
