"""What a draft's name means: what copies, a cascade, a head, counts, else a model.

Owns: `make_draft`, and which trees a draft of a name can grow. Must not know how models are loaded or who asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specviz.config import (
    CASCADE,
    CORPUS_SUFFIX,
    LOOKUP,
    MAX_DRAFT_LEN,
    MAX_TREE_NODES,
    REFERENCES,
    RetrievalSettings,
    RunConfig,
    copies,
    members,
)
from specviz.drafts import DraftSource
from specviz.drafts.cascade import Cascade
from specviz.drafts.head_file import is_head, load_head
from specviz.drafts.mix import make_tree
from specviz.drafts.model import ModelDraft
from specviz.drafts.ngram import NgramTable
from specviz.drafts.retrieval import Retrieval
from specviz.drafts.retrieval.corpus import open_corpus
from specviz.drafts.retrieval.fixed import FixedTexts
from specviz.drafts.shape import AutoShape, Costs, Profile, Shape
from specviz.drafts.skip import SkipDraft
from specviz.errors import ConfigError
from specviz.models import LoadedModel
from specviz.models.catalog import num_skip_layers
from specviz.models.source import counts_of, local_folder


@dataclass(frozen=True, kw_only=True)
class Makers:
    """What drafts are made of. `references` are the run's, None without any; `load` gives a model that fits.

    `shape` says how the tree of such a model grows, None for a chain; `most_drafted` bounds what is not copied
    wherever a copying draft stands beside it.
    """

    target: LoadedModel
    settings: RetrievalSettings
    references: FixedTexts | None
    load: Callable[[str], LoadedModel]
    shape: Callable[[LoadedModel], Shape | None] = lambda _: None
    most_drafted: int = MAX_DRAFT_LEN


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
        return Retrieval(Path(name).name, [open_corpus(name, makers.target.tokenizer)], makers.settings)
    return _make_drawing(name, makers)


def _make_drawing(name: str, makers: Makers) -> DraftSource:
    """What is trained or counted for a target, or a model of its own."""
    folder = local_folder(name)
    if folder and is_head(folder):
        return load_head(folder, name, makers.target)
    if counts := counts_of(name):
        table = NgramTable.open(counts.file)
        table.check_tokens(makers.target.tokenizer, makers.target.vocab_size, makers.target.name)
        head = load_head(counts.head, counts.head.name, makers.target) if counts.head else None
        return make_tree(counts.draft, table, head)
    loaded = makers.load(name)
    kind = ModelDraft if num_skip_layers(name) is None else SkipDraft
    return kind(loaded, makers.shape(loaded))


def _make_cascade(name: str, makers: Makers) -> DraftSource:
    names = members(name)
    if any(one.startswith(CASCADE) for one in names):
        raise ConfigError(f"{name!r} asks a cascade inside a cascade; write all of its drafts in one list.")
    if len(names) < 2 or any(not one or one == "none" for one in names):
        raise ConfigError(f"{name!r} names no cascade; write two or more drafts, as in cascade:references,tiny.")
    return Cascade([make_draft(one, makers) for one in names], makers.most_drafted)


def require_branching(config: RunConfig) -> None:
    """Refuse a tree that no draft can grow: heads draft one chain, counts and copies only a tree of their own.

    Raises:
        ConfigError: it names the draft and what to give instead.
    """
    names = [name for draft in config.drafts for name in members(draft) if name != "none"]
    plan = config.tree_plan
    if plan is None or not names or any(can_branch(name, by_profile=bool(plan.widths)) for name in names):
        return
    if spreading := [name for name in names if _spreads(name)]:
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
    if _spreads(name):
        return not by_profile
    folder = local_folder(name)
    return not (folder and is_head(folder))


def _spreads(name: str) -> bool:
    """Whether a draft forks where what it knows forks, whatever it is told."""
    return copies(name) or counts_of(name) is not None


def most_drafted(config: RunConfig) -> int:
    """What bounds a draft that does not copy where one that does stands beside it."""
    if config.tree:
        return MAX_TREE_NODES
    return config.draft_len if isinstance(config.draft_len, int) else MAX_DRAFT_LEN


def shape_of(config: RunConfig, target: LoadedModel, draft: LoadedModel) -> Shape | None:
    """How the tree of a draft model grows; None for chains."""
    plan = config.tree_plan
    if plan is None:
        return None
    if plan.widths:
        return Profile(plan.widths)
    return AutoShape(Costs(sorted(target.pass_times.items()), sorted(draft.pass_times.items())))
