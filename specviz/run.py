"""A run from settings to events: names become models, the prompt becomes ids, lanes become a race.

Owns: `prepare` and `Run`, what both faces call. Must not know the faces. Everything that can be refused is
refused in `prepare`, before anything runs.
"""

from __future__ import annotations

import dataclasses
import platform
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
import transformers

import specviz
from specviz import models, text
from specviz.config import MAX_SEED, RunConfig
from specviz.decode import Surroundings, autoregress, check_prompt, race, speculate
from specviz.drafts import DraftSource
from specviz.drafts.head_file import is_head, load_head
from specviz.drafts.lookup import PromptLookup
from specviz.drafts.merge import MergedDraft
from specviz.drafts.mix import make_tree
from specviz.drafts.model import ModelDraft
from specviz.drafts.ngram import NgramTable
from specviz.drafts.shape import AutoShape, Chain, Costs, Profile, Shape
from specviz.drafts.skip import SkipDraft
from specviz.errors import ConfigError
from specviz.models import LoadedModel, catalog
from specviz.models.loading import Progress
from specviz.models.source import counts_of, local_folder, require_known
from specviz.runner import calibrate
from specviz.trace import Event, Piece, RunFinished, Trace, event_ids

_CALIBRATION = threading.Lock()  # two visitors must not measure at the same time


class Run:
    """One prepared run. `trace` grows while `events` is consumed and holds the bytes of every id seen."""

    def __init__(
        self,
        config: RunConfig,
        target: LoadedModel,
        source: DraftSource | None,
        prompt_ids: list[int],
        cancelled: Callable[[], bool],
    ) -> None:
        self.config = config
        self.target = target
        self.prompt_ids = prompt_ids
        self.trace = Trace(config=config.to_json(), versions={**versions(), "machine": _machine()})
        self._source = source
        self._broken = False
        self._cancelled = lambda: self._broken or cancelled()
        self._read_piece = text.PieceReader(target.tokenizer) if target.tokenizer else _number_piece

    def events(self) -> Iterator[Event]:
        """The events of all lanes in race order, each kept in `trace` before it is handed out.

        A lane that ends in an error ends the run: the other stops before its next pass.
        """
        for event in self._lanes():
            self._broken |= isinstance(event, RunFinished) and event.reason == "error"
            for token_id in event_ids(event):
                self.piece(token_id)
            self.trace.events.append(event)
            yield event

    def piece(self, token_id: int) -> Piece:
        """The bytes of a token."""
        if token_id not in self.trace.pieces:
            self.trace.pieces[token_id] = self._read_piece(token_id)
        return self.trace.pieces[token_id]

    def _lanes(self) -> Iterator[Event]:
        lanes = []
        if self.config.baseline or self._source is None:
            lanes.append(autoregress(self.target, self.prompt_ids, self.config, self._surroundings()))
        if self._source is not None:
            around = self._surroundings()
            lanes.append(speculate(self.target, self._source, self.prompt_ids, self.config, around))
        return race(*lanes)

    def _surroundings(self) -> Surroundings:
        assert self.config.seed is not None
        stops = text.StopChecker(self.config.stop, self.piece).push
        return Surroundings(seed=self.config.seed, stops=stops, cancelled=self._cancelled)


class Prepare(Protocol):
    """What `prepare` is, for a face that can be handed another one."""

    def __call__(
        self,
        config: RunConfig,
        *,
        progress: Progress | None = ...,
        cancelled: Callable[[], bool] = ...,
    ) -> Run: ...


def prepare(
    config: RunConfig,
    *,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Run:
    """Load what the settings name and encode the prompt.

    `progress(sentence, fraction or None)` is told what takes long; `cancelled` is asked between passes.

    Raises:
        SpecvizError: whatever forbids the run, in one sentence.
    """
    target_name = config.target or models.default_target()
    drafts = config.drafts or catalog.default_drafts(target_name)
    config = dataclasses.replace(
        config,
        target=target_name,
        drafts=drafts,
        draft_len=config.draft_len or catalog.default_draft_len(drafts),
        seed=secrets.randbelow(MAX_SEED + 1) if config.seed is None else config.seed,
    )
    for name in (target_name, *config.drafts):
        require_known(name)
    _require_branching(config)
    target = _load(target_name, config, config.numerics, progress)
    prompt_ids = text.encode_prompt(target.tokenizer, config.prompt, raw=config.raw)
    check_prompt(prompt_ids, target)
    source = make_source(target, config, progress)
    return Run(config, target, source, prompt_ids, cancelled)


def _require_branching(config: RunConfig) -> None:
    """Refuse a tree that no draft can grow: copies and heads draft one chain, counts only a tree of their own.

    Raises:
        ConfigError: it names the draft and what to give instead.
    """
    names = [name for name in config.drafts if name != "none"]
    plan = config.tree_plan
    if plan is None or not names or any(can_branch(name, by_profile=bool(plan.widths)) for name in names):
        return
    if spreading := [name for name in names if counts_of(name)]:
        raise ConfigError(
            f"The tree {config.tree} sets the children per level, but {spreading[0]} spreads its tree by itself; "
            "give auto or auto:N, leave the tree out, or add a draft with a model of its own, such as tiny."
        )
    raise ConfigError(
        f"The tree {config.tree} needs a draft that can branch, but {' and '.join(names)} can only draft a chain; "
        "leave the tree out, or add a draft with a model of its own, such as tiny."
    )


def can_branch(name: str, *, by_profile: bool) -> bool:
    """Whether a draft of that name grows trees: of a given profile, or at all."""
    if counts_of(name):
        return not by_profile
    folder = local_folder(name)
    return name != "lookup" and not (folder and is_head(folder))


def make_source(target: LoadedModel, config: RunConfig, progress: Progress | None = None) -> DraftSource | None:
    """The draft source that the settings name; several are merged into one tree; "none" is None.

    Raises:
        ModelError: a draft that cannot be had, or whose tokens are not the target's.
    """
    names = [name for name in config.drafts if name != "none"]
    sources = [_make_one(name, target, config, progress) for name in names]
    if not sources:
        return None
    return sources[0] if len(sources) == 1 else MergedDraft(sources)


def _make_one(name: str, target: LoadedModel, config: RunConfig, progress: Progress | None) -> DraftSource:
    if name == "lookup":
        return PromptLookup()
    num_layers = catalog.num_skip_layers(name)
    if num_layers is not None:
        draft = _measured(models.first_layers(target, num_layers, name), progress)
        return SkipDraft(draft, _shape(target, draft, config))
    folder = local_folder(name)
    if folder and is_head(folder):
        return load_head(folder, name, target)
    if name == catalog.BLANK:
        draft = _measured(models.load_blank(target), progress)
        return ModelDraft(draft, _shape(target, draft, config))
    if counts := counts_of(name):
        table = NgramTable.open(counts.file)
        table.check_tokens(target.tokenizer, target.vocab_size, target.name)
        head = load_head(counts.head, counts.head.name, target) if counts.head else None
        return make_tree(counts.draft, table, head)
    # A draft need not be exact to be verified; but the target as its own draft must give its own bits.
    numerics = config.numerics if name == config.target else "fast"
    draft = _load(name, config, numerics, progress)
    models.check_same_tokens(target, draft)
    return ModelDraft(draft, _shape(target, draft, config))


def _shape(target: LoadedModel, draft: LoadedModel, config: RunConfig) -> Shape:
    plan = config.tree_plan
    if plan is None:
        return Chain()
    if plan.widths:
        return Profile(plan.widths)
    return AutoShape(Costs(sorted(target.pass_times.items()), sorted(draft.pass_times.items())))


def _load(name: str, config: RunConfig, numerics: str, progress: Progress | None) -> LoadedModel:
    loaded = models.load(name, dtype=config.dtype, device=config.device, numerics=numerics, progress=progress)
    return _measured(loaded, progress)


def _measured(loaded: LoadedModel, progress: Progress | None) -> LoadedModel:
    with _CALIBRATION:
        if progress and not loaded.pass_times:
            progress(f"Measuring {loaded.name}", None)
        calibrate(loaded)
    return loaded


def _number_piece(token_id: int) -> Piece:
    return Piece(f"⟨{token_id}⟩".encode())


def versions() -> dict[str, str]:
    """Of this program and of the libraries that decide what it computes and how fast."""
    return {
        "specviz": specviz.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def _machine() -> str:
    return f"{platform.machine()}, {torch.get_num_threads()} threads"
