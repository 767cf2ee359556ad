"""What every measurement needs: the pair, how much to run, and how to run it.

Owns: `Bench` and `Row`. Must not know which measurements there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from specviz import models, run
from specviz.bench.prompts import PROMPTS
from specviz.bench.rounds import Spread
from specviz.config import CASCADE, REFERENCES, RunConfig, copies
from specviz.drafts.retrieval.library import Shelf
from specviz.drafts.retrieval.sets import ReferenceSet, load_sets
from specviz.models import LoadedModel, catalog
from specviz.trace import Event, Trace


@dataclass(frozen=True)
class Goal:
    """A limit that the median should keep: at most, or at least."""

    limit: float
    at_most: bool

    def is_met(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit


@dataclass(frozen=True)
class Row:
    """One measured number. `unit` is "s", "ms", "tokens/s", "×", "%" (a share of 1) or "" for a plain number."""

    section: str
    name: str
    unit: str
    spread: Spread
    goal: Goal | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        met = self.goal.is_met(self.spread.median) if self.goal else None
        goal = asdict(self.goal) if self.goal else None
        named = {"section": self.section, "name": self.name, "unit": self.unit}
        return {**named, **asdict(self.spread), "goal": goal, "met": met, "note": self.note}


class _Run(Protocol):
    trace: Trace

    def events(self) -> Any: ...


def _default_drafts() -> tuple[str, ...]:
    """The embedded target's drafts that are ready, the default one first."""
    entry = catalog.find(catalog.EMBEDDED)
    named = [catalog.find(name) for name in entry.drafts] if entry else []
    return tuple(draft.name for draft in named if draft and catalog.is_ready(draft)[0])


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The target with its drafts, and how much to run. Tests give other ways to prepare and to load."""

    quick: bool = False
    length: int | None = None
    target: str = catalog.EMBEDDED
    drafts: Sequence[str] = field(default_factory=_default_drafts)
    prompts: Sequence[str] = PROMPTS
    prepare: Callable[..., _Run] = run.prepare
    load: Callable[..., LoadedModel] = models.load
    load_plain: Callable[[str], tuple[Any, Any]] = models.load_plain
    sets: Sequence[ReferenceSet] = field(default_factory=load_sets)
    load_tokenizer: Callable[[str], Any] = models.load_tokenizer

    @property
    def num_rounds(self) -> int:
        return 3 if self.quick else 9

    @property
    def num_tokens(self) -> int:
        """New tokens of a run: `length`, where that is given."""
        return self.length or (40 if self.quick else 128)

    @property
    def copying_cascade(self) -> str:
        """Copies from references, and the first other draft where nothing matches; "" for a quick run."""
        first = next((name for name in self.drafts if not copies(name)), "")
        return f"{CASCADE}{REFERENCES},{first}" if first and not self.quick else ""

    @property
    def num_tokens_cited(self) -> int:
        """The most of an answer that leans on a reference; it may end before."""
        return 64 if self.quick else 128

    @property
    def chosen_prompts(self) -> Sequence[str]:
        return self.prompts[:2] if self.quick else self.prompts

    def decode(self, prompt: str, **settings: Any) -> Trace:
        """The whole trace of one run; seed 0 and no end before `num_tokens` unless the settings say otherwise."""
        return self.decode_with(None, prompt, **settings)

    def decode_with(self, shelf: Shelf | None, prompt: str, **settings: Any) -> Trace:
        """The same with the references on a shelf, where there is one."""
        usual = {"target": self.target, "max_new_tokens": self.num_tokens, "ignore_eos": True, "seed": 0}
        more = {"shelf": shelf} if shelf else {}
        prepared = self.prepare(RunConfig(prompt=prompt, **{**usual, **settings}), **more)
        consume(prepared.events())
        return prepared.trace


def consume(events: Any) -> list[Event]:
    """All events of a run."""
    return list(events)
