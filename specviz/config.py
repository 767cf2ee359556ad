"""Every setting of a run, frozen and validated once.

Owns: names, defaults and legal ranges of all settings. Must not know models, tensors or any face; a
face builds a `RunConfig` and hands it on, and nobody checks a range again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from specviz.errors import ConfigError

DraftLen = int | Literal["auto"]
MAX_DRAFT_LEN = 32
DEFAULT_DRAFT_LEN = 4
MAX_NEW_TOKENS = 8192
MAX_PROMPT_CHARS = 200_000
MAX_STOP_STRINGS = 16
MAX_SEED = 2**31 - 1  # torch's CPU generator takes 32 bits, and each lane has a stream of its own
MAX_TEMPERATURE = 10.0
MAX_TOP_K = 1_000_000
MIN_PENALTY, MAX_PENALTY = 0.1, 10.0
MIN_TEMPERATURE = 0.001  # below, float32 logits overflow; only 0 itself is greedy
DTYPES = ("auto", "float32", "bfloat16", "float16")
NUMERICS = ("exact", "fast")
LOOKUP, REFERENCES, CASCADE, CORPUS_SUFFIX = "lookup", "references", "cascade:", ".sv"  # drafts without a model
COPY_SOURCES = ("references", "prompt", "output")
_LISTS = ("drafts", "stop", "references", "prompt_references", "copy_sources")
MAX_REFERENCES = 10
MAX_DRAFTS = 4
MAX_TREE_NODES = 64
_MOST_COUNTED = 9_999
"""Nodes of a tree that is refused; of a larger one it is only said that it is larger."""
RULES = ("standard", "naive")


@dataclass(frozen=True, kw_only=True)
class RetrievalSettings:
    """How copies are made, for every draft that copies.

    `min_match` is the fewest tokens that must agree, `copy_len` the most that a step copies, `sources` what may be
    copied from: references and corpus, the prompt, the own output.
    """

    min_match: int = 1
    copy_len: DraftLen = "auto"
    sources: tuple[str, ...] = COPY_SOURCES

    @property
    def most_copied(self) -> int:
        """Tokens that a step may copy at most."""
        return MAX_DRAFT_LEN if self.copy_len == "auto" else self.copy_len


@dataclass(frozen=True, kw_only=True)
class TreePlan:
    """What `tree` asks for: `widths`, children per level, or (empty) growth by itself.

    `num_nodes` is the most that a draft may propose in a step, None where the machine decides.
    """

    widths: tuple[int, ...] = ()
    num_nodes: int | None = None

    @classmethod
    def parse(cls, text: str) -> TreePlan:
        """From `3,2,1,1`, `auto` or `auto:N`.

        Raises:
            ConfigError: it reads otherwise, or has more nodes than a pass may check.
        """
        kind, colon, number = text.strip().partition(":")
        if kind == "auto" and (number.isdecimal() if colon else True):
            plan = cls(num_nodes=_whole(number) if colon else None)
        elif all(part.strip().isdecimal() for part in text.split(",")):
            widths = tuple(_whole(part.strip()) for part in text.split(","))
            plan = cls(widths=widths, num_nodes=_num_nodes(widths))
        else:
            plan = cls(num_nodes=0)
        if plan.num_nodes == 0 or 0 in plan.widths:
            raise ConfigError(
                f"The tree is {text[:40]!r}, but must be children per level such as 3,2,1,1 (each 1 or more), "
                f"auto, or auto:N with a budget of 1 to {MAX_TREE_NODES} nodes."
            )
        return plan

    def most_nodes(self, depth: int) -> int | None:
        """`num_nodes` of a draft that has so many levels to fill."""
        return _num_nodes(self.widths[:depth]) if self.widths else self.num_nodes

    def most_of(self, num_drafts: int) -> int:
        """Nodes that a pass must be able to check: a profile is grown by each draft, a budget is shared."""
        return (self.num_nodes or 0) * (num_drafts if self.widths else 1)


def _whole(digits: str) -> int:
    """The number, or of a long one some number that is also beyond `_MOST_COUNTED`."""
    return int(digits.lstrip("0")[:9] or "0")


def _num_nodes(widths: tuple[int, ...]) -> int:
    """All nodes of a tree with so many children per level: 3,2 has 3 + 6. It stops beyond `_MOST_COUNTED`."""
    level, total = 1, 0
    for width in widths:
        level *= width
        total += level
        if total > _MOST_COUNTED:
            break
    return total


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of one run. They hold for the baseline and for both sides of speculation alike.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 switch the filter off. `draft_len` is the most
    tokens a step may draft, "auto", or None for what suits the drafts; `tree`, where not empty, takes its place
    (see `TreePlan`); copies have a length of their own, see `RetrievalSettings`, where the other settings of
    copying are told, too. `rule` "naive" is for teaching: the same law, fewer accepted tokens. `seed` None draws a
    fresh seed for the run. `target` and `drafts` are names of the catalog, Hub ids or paths; what they mean is
    known to `models` alone. `references` are paths of texts to copy from; the texts of those in
    `prompt_references` stand before the prompt as well.

    Raises:
        ConfigError: a value out of range; the sentence names it and the legal range.
    """

    prompt: str = ""
    target: str = ""
    drafts: tuple[str, ...] = ()
    draft_len: DraftLen | None = None
    tree: str = ""
    rule: str = "standard"
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_new_tokens: int = 0
    max_new_tokens: int = 128
    seed: int | None = None
    raw: bool = False
    baseline: bool = True
    dtype: str = "auto"
    device: str = "auto"
    numerics: str = "exact"
    references: tuple[str, ...] = ()
    prompt_references: tuple[str, ...] = ()
    min_match: int = 1
    copy_len: DraftLen = "auto"
    copy_sources: tuple[str, ...] = COPY_SOURCES

    def __post_init__(self) -> None:
        self._check_types()
        _within("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise ConfigError(
                f"The temperature is {self.temperature!r}, but must be 0 (greedy) or from {MIN_TEMPERATURE} to "
                f"{MAX_TEMPERATURE:g}."
            )
        _within("top-k", self.top_k, 0, MAX_TOP_K, whole=True)
        _within("top-p", self.top_p, 0.0, 1.0)
        if self.top_p == 0:
            raise ConfigError("The top-p is 0, but must be above 0 and at most 1; 1 switches it off.")
        _within("repetition penalty", self.repetition_penalty, MIN_PENALTY, MAX_PENALTY)
        _within("maximum of new tokens", self.max_new_tokens, 1, MAX_NEW_TOKENS, whole=True)
        _within("minimum of new tokens", self.min_new_tokens, 0, self.max_new_tokens, whole=True)
        if self.draft_len is not None and self.draft_len != "auto":
            _within("draft length", self.draft_len, 1, MAX_DRAFT_LEN, whole=True, otherwise=' or "auto"')
        if self.seed is not None:
            _within("seed", self.seed, 0, MAX_SEED, whole=True)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("kind of numerics", self.numerics, NUMERICS)
        _one_of("rule", self.rule, RULES)
        self._check_texts()
        self._check_retrieval()
        self._check_drafts()

    def _check_types(self) -> None:
        for name in ("prompt", "target", "tree", "dtype", "device", "numerics"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"The setting {name} must be a text.")
        for name in _LISTS:
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
                raise ConfigError(f"The setting {name} must be a list of texts.")
        for name in ("ignore_eos", "raw", "baseline"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"The setting {name} must be true or false.")

    def _check_texts(self) -> None:
        if len(self.prompt) > MAX_PROMPT_CHARS:
            raise ConfigError(
                f"The prompt has {len(self.prompt):,} characters; at most {MAX_PROMPT_CHARS:,} are allowed."
            )
        if len(self.stop) > MAX_STOP_STRINGS or any(not stop for stop in self.stop):
            raise ConfigError(f"Give at most {MAX_STOP_STRINGS} stop strings, none of them empty.")

    def _check_retrieval(self) -> None:
        if len(self.references) > MAX_REFERENCES:
            raise ConfigError(
                f"{len(self.references)} references are given; at most {MAX_REFERENCES} are allowed."
            )
        strangers = [name for name in self.prompt_references if name not in self.references]
        if strangers:
            raise ConfigError(f"{strangers[0]!r} is to stand in the prompt, but is none of the references.")
        _within("minimum match", self.min_match, 1, 64, whole=True)
        if self.copy_len != "auto":
            _within("copy length", self.copy_len, 1, MAX_DRAFT_LEN, whole=True, otherwise=' or "auto"')
        for source in self.copy_sources:
            _one_of("copy source", source, COPY_SOURCES)

    @property
    def retrieval(self) -> RetrievalSettings:
        """The settings that copying sources need."""
        return RetrievalSettings(min_match=self.min_match, copy_len=self.copy_len, sources=self.copy_sources)

    def _check_drafts(self) -> None:
        if len(self.drafts) > MAX_DRAFTS:
            raise ConfigError(f"{len(self.drafts)} drafts were given; at most {MAX_DRAFTS} can share a tree.")
        plan, num = self.tree_plan, max(sum(name != "none" for name in self.drafts), 1)
        num_nodes = plan.most_of(num) if plan else 0
        if num_nodes > MAX_TREE_NODES:
            by = f" from each of {num} drafts" if plan and plan.widths and num > 1 else ""
            told = f"{num_nodes:,}" if num_nodes <= _MOST_COUNTED else f"more than {_MOST_COUNTED:,}"
            raise ConfigError(
                f"The tree {self.tree[:40]}{by} comes to {told} nodes a pass; at most {MAX_TREE_NODES} are "
                "checked at once, so give fewer children or levels."
            )
        twice = next((name for name in self.drafts if self.drafts.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(
                f"The draft {twice[:40]!r} is given twice; a second copy knows nothing new, so give it once."
            )

    @property
    def tree_plan(self) -> TreePlan | None:
        """The trees to draft; None for chains of `draft_len`."""
        return TreePlan.parse(self.tree) if self.tree else None

    def to_json(self) -> dict[str, Any]:
        """All settings as plain JSON values, keyed by field name."""
        return {**dataclasses.asdict(self), **{name: list(getattr(self, name)) for name in _LISTS}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunConfig:
        """The inverse of `to_json`.

        Raises:
            ConfigError: an unknown setting, a wrong type, or a value out of range.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ConfigError(f"Unknown setting {unknown[0]!r}; known are {', '.join(sorted(known))}.")
        lists = {name: tuple(data[name]) for name in _LISTS if isinstance(data.get(name), list)}
        return cls(**{**data, **lists})


def members(draft: str) -> list[str]:
    """The drafts that a cascade asks in order; of any other name, that name alone."""
    return draft.removeprefix(CASCADE).split(",") if draft.startswith(CASCADE) else [draft]


def copies(draft: str) -> bool:
    """Whether a draft of that name, or a member of the cascade of that name, copies what it proposes."""
    return any(name in (LOOKUP, REFERENCES) or name.endswith(CORPUS_SUFFIX) for name in members(draft))


def _within(
    name: str, value: object, low: float, high: float, *, whole: bool = False, otherwise: str = ""
) -> None:
    legal_type = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not legal_type or not low <= value <= high:  # type: ignore[operator]  # NaN compares false
        kind = "a whole number" if whole else "a number"
        raise ConfigError(f"The {name} is {value!r}, but must be {kind} from {low:,} to {high:,}{otherwise}.")


def _one_of(name: str, value: object, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise ConfigError(f"The {name} is {value!r}, but must be one of {', '.join(legal)}.")
