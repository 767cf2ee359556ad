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
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers

import specviz
from specviz import models, text
from specviz.config import (
    CASCADE,
    CORPUS_SUFFIX,
    MAX_SEED,
    REFERENCES,
    RunConfig,
    copies,
    members,
)
from specviz.decode import Surroundings, autoregress, check_prompt, race, speculate
from specviz.drafts import DraftSource
from specviz.drafts.merge import MergedDraft
from specviz.drafts.naming import Makers, make_draft, most_drafted, require_branching, shape_of
from specviz.drafts.retrieval.library import Library, Shelf
from specviz.errors import ContextError
from specviz.models import LoadedModel, catalog
from specviz.models.loading import Progress
from specviz.models.source import require_known
from specviz.runner import calibrate
from specviz.runner.calibrate import BLOCK_SIZES
from specviz.trace import Event, Piece, RunFinished, Trace, event_ids

_CALIBRATION = threading.Lock()  # two visitors must not measure at the same time


class Run:
    """One prepared run. `trace` grows while `events` is consumed and holds the bytes of every id seen, and the
    texts of the references. `warnings` are sentences on what goes on without: files that cannot be used.
    """

    def __init__(
        self,
        config: RunConfig,
        target: LoadedModel,
        source: DraftSource | None,
        prompt_ids: list[int],
        cancelled: Callable[[], bool],
        library: Library | None = None,
    ) -> None:
        self.config = config
        self.warnings = library.complaints if library else ()
        self.target = target
        self.prompt_ids = prompt_ids
        self.trace = Trace(config=_kept(config, library), versions={**versions(), "machine": _machine()})
        if library is not None:
            self.trace.references = library.references
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
        shelf: Shelf | None = ...,
    ) -> Run: ...


def prepare(
    config: RunConfig,
    *,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    shelf: Shelf | None = None,
) -> Run:
    """Load what the settings name and encode the prompt.

    `progress(sentence, fraction or None)` is told what takes long; `cancelled` is asked between passes. `shelf`
    holds the references where a face keeps them ready; else they are read from the settings' paths.

    Raises:
        SpecvizError: whatever forbids the run, in one sentence.
    """
    if shelf is None and config.references:
        shelf = Shelf.read(config.references, config.prompt_references)
    target_name = config.target or models.default_target()
    drafts = config.drafts or _default_drafts(target_name, shelf)
    by_name = [name for draft in drafts for name in members(draft)]
    config = dataclasses.replace(
        config,
        target=target_name,
        drafts=drafts,
        draft_len=config.draft_len or catalog.default_draft_len(by_name),
        seed=secrets.randbelow(MAX_SEED + 1) if config.seed is None else config.seed,
    )
    for name in (target_name, *(name for name in by_name if not copies(name))):
        require_known(name)
    require_branching(config)
    target = _load(target_name, config, config.numerics, progress)
    if shelf and progress:
        progress("Reading the references", None)
    library = shelf.library(target.tokenizer) if shelf else None
    prompt_ids = text.encode_prompt(target.tokenizer, _whole_prompt(config, target, library), raw=config.raw)
    check_prompt(prompt_ids, target)
    source = make_source(target, config, progress, library)
    return Run(config, target, source, prompt_ids, cancelled, library)


def make_source(
    target: LoadedModel, config: RunConfig, progress: Progress | None = None, library: Library | None = None
) -> DraftSource | None:
    """The draft source that the settings name; several are merged into one tree; "none" is None.

    Raises:
        ModelError: a draft that cannot be had, or whose tokens are not the target's.
        DocumentError: a corpus that cannot be used.
    """
    makers = Makers(
        target=target,
        settings=config.retrieval,
        references=library.texts if library else None,
        load=lambda name: _load_draft(name, target, config, progress),
        shape=lambda draft: shape_of(config, target, draft),
        most_drafted=most_drafted(config),
    )
    sources = [make_draft(name, makers) for name in config.drafts if name != "none"]
    if not sources:
        return None
    return sources[0] if len(sources) == 1 else MergedDraft(sources, makers.most_drafted)


def _default_drafts(target: str, shelf: Shelf | None) -> tuple[str, ...]:
    """Whoever brings references wants them used."""
    return (REFERENCES,) if shelf else catalog.default_drafts(target)


def _whole_prompt(config: RunConfig, target: LoadedModel, library: Library | None) -> str:
    """The prompt behind the references that are to stand in it.

    Raises:
        ContextError: these alone leave no room in the context.
    """
    if library is None:
        return config.prompt
    if target.context_len and library.num_in_prompt > target.context_len:
        raise ContextError(
            f"The references in the prompt have {library.num_in_prompt:,} tokens, but {target.name} takes at most "
            f"{target.context_len:,}; use some of them for drafting alone."
        )
    return library.with_prompt(config.prompt)


def _kept(config: RunConfig, library: Library | None) -> dict[str, Any]:
    """The settings as a trace keeps them: of a file its name, not where it lies on this machine."""
    documents = library.documents if library else ()
    return dataclasses.replace(
        config,
        drafts=tuple(_without_folders(name) for name in config.drafts),
        references=tuple(document.name for document in documents),
        prompt_references=tuple(document.name for document in documents if document.in_prompt),
    ).to_json()


def _without_folders(draft: str) -> str:
    """A corpus by its file's name, alone or as a member of a cascade."""
    names = [Path(name).name if name.endswith(CORPUS_SUFFIX) else name for name in members(draft)]
    return (CASCADE if draft.startswith(CASCADE) else "") + ",".join(names)


def _load_draft(name: str, target: LoadedModel, config: RunConfig, progress: Progress | None) -> LoadedModel:
    num_layers = catalog.num_skip_layers(name)
    if num_layers is not None:
        return _measured(models.first_layers(target, num_layers, name), progress)
    if name == catalog.BLANK:
        return _measured(models.load_blank(target), progress)
    # A draft need not be exact to be verified; but the target as its own draft must give its own bits.
    numerics = config.numerics if name == config.target else "fast"
    draft = _load(name, config, numerics, progress)
    models.check_same_tokens(target, draft)
    return draft


def _load(name: str, config: RunConfig, numerics: str, progress: Progress | None) -> LoadedModel:
    loaded = models.load(name, dtype=config.dtype, device=config.device, numerics=numerics, progress=progress)
    return _measured(loaded, progress)


def _measured(loaded: LoadedModel, progress: Progress | None) -> LoadedModel:
    with _CALIBRATION:
        if progress and not loaded.pass_times:
            most = max(BLOCK_SIZES)
            what = f"Measuring how long a pass of {loaded.name} takes, for 1 to {most} tokens; once a start"
            progress(what, None)
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
