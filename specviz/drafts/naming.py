"""What a draft's name means: `lookup`, `references`, a corpus file, `cascade:A,B`, else a model.

Owns: `make_draft`. Must not know how models are loaded or who asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specviz.config import CASCADE, CORPUS_SUFFIX, LOOKUP, MAX_DRAFT_LEN, REFERENCES, DraftLen, RetrievalSettings
from specviz.drafts import DraftSource
from specviz.drafts.cascade import Cascade
from specviz.drafts.model import ModelDraft
from specviz.drafts.retrieval import Retrieval
from specviz.drafts.retrieval.corpus import open_corpus
from specviz.drafts.retrieval.fixed import FixedTexts
from specviz.errors import ConfigError
from specviz.models import LoadedModel


@dataclass(frozen=True, kw_only=True)
class Makers:
    """What drafts are made of. `references` are the run's, None without any; `load` gives a draft model.

    `draft_len` bounds what is not copied wherever a copying draft stands beside it.
    """

    tokenizer: Any
    settings: RetrievalSettings
    references: FixedTexts | None
    load: Callable[[str], LoadedModel]
    draft_len: DraftLen = "auto"

    @property
    def most_drafted(self) -> int:
        return MAX_DRAFT_LEN if self.draft_len == "auto" else self.draft_len


def make_draft(name: str, makers: Makers) -> DraftSource:
    """The source of that name.

    Raises:
        ConfigError: `references` without a reference, or a cascade of fewer than two drafts.
        ModelError: a model that cannot be had.
        DocumentError: a corpus that cannot be used.
    """
    if name.startswith(CASCADE):
        return _make_cascade(name, makers)
    if name == LOOKUP:
        return Retrieval(name, (), makers.settings)
    if name == REFERENCES:
        if makers.references is None:
            raise ConfigError("The draft 'references' needs a text to copy from; give at least one reference.")
        return Retrieval(name, [makers.references], makers.settings)
    if name.endswith(CORPUS_SUFFIX):
        return Retrieval(Path(name).name, [open_corpus(name, makers.tokenizer)], makers.settings)
    return ModelDraft(makers.load(name))


def _make_cascade(name: str, makers: Makers) -> DraftSource:
    members = name.removeprefix(CASCADE).split(",")
    if len(members) < 2 or any(not one or one == "none" or one.startswith(CASCADE) for one in members):
        raise ConfigError(f"{name!r} names no cascade; write two or more drafts, as in cascade:references,tiny.")
    return Cascade([make_draft(one, makers) for one in members], makers.most_drafted)
