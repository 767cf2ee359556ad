"""A small causal LM as the draft: one pass of its own for each level of its tree; a chain has one node a level.

Owns: the draft's cache and its rollback, and drawing children from its rows. Must not know the rule; it only says
from which row it drew. Where the tree grows is said by its `Shape`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specviz.config import MAX_TREE_NODES
from specviz.drafts import Observation
from specviz.drafts.shape import MAX_WIDTH, SURE, Chain, Hope, Outcome, Shape
from specviz.errors import NumericsError
from specviz.models import LoadedModel
from specviz.runner import Runner
from specviz.sampling import Sampler, draw, one_hot, top_candidates, uniform
from specviz.verify import ROOT, TokenTree


class ModelDraft:
    """Grows a tree from its own rows, shaped by the run's settings (2211.17192, Alg. 1; 2305.09781, §3).

    At temperature 0 the children of a node are its best tokens, as sure choices. Above it they are drawn without
    replacement: each from what the row has left, renormalised, and that is the row it carries.

    Drafting stops where the draft's own context ends. Ids that it has no embedding for (a target's padding)
    are read as id 0: a guess from a wrong context is still only a guess.
    """

    wants_hidden = False

    def __init__(self, loaded: LoadedModel, shape: Shape | None = None) -> None:
        self.names: tuple[str, ...] = (loaded.name,)
        self._loaded = loaded
        self._runner: Runner
        self._shape = shape or Chain()
        self._sampler: Sampler
        self._cancelled: Callable[[], bool] = lambda: False
        self._forget()

    def _forget(self) -> None:
        """The next pass may come without a draft of ours."""
        self._tree = TokenTree()
        self._hopes: dict[int, Hope] = {}
        self._rows: dict[int, int] = {}  # node → its row in the runner, for nodes that were fed

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        self._sampler, self._cancelled = sampler, cancelled
        self._shape.start(greedy=sampler.config.temperature == 0)
        self._forget()
        self._runner = self._runner_over(context_ids, sampler, cancelled)

    def _runner_over(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> Runner:
        """A runner that has read the text but for its last token."""
        runner = Runner(self._loaded, capacity=len(context_ids) + sampler.config.max_new_tokens + MAX_TREE_NODES)
        limit = self._loaded.context_len or len(context_ids)
        runner.prefill(self._readable(context_ids[:-1][:limit]), cancelled)
        return runner

    def _catch_up(self) -> None:
        """Before a step: what was committed elsewhere is known here, too. Nothing is, in a cache of one's own."""

    def propose(self, context_ids: list[int], budget: int, generator: torch.Generator) -> TokenTree:
        self._forget()
        depths = min(budget, self._sampler.num_draftable)
        if self._loaded.context_len:
            depths = min(depths, self._loaded.context_len - len(context_ids) + 1)
        level = self._shape.expand({ROOT: SURE}, 1) if depths > 0 else {}
        if not level:
            return self._tree
        self._catch_up()
        logits = self._read(context_ids[self._runner.length :])
        for depth in range(1, depths + 1):
            if self._cancelled():
                break
            grown = self._grow(level, logits, depth, budget - len(self._tree), generator)
            is_last = depth == depths or len(self._tree) == budget
            level = {} if is_last else self._shape.expand(grown, depth + 1)
            if not level:
                break
            logits = self._feed(list(level))
        return self._tree

    def observe(self, seen: Observation) -> None:
        """Keep the rows of drafted tokens that came to be, of those that were fed (leaves never are)."""
        path: list[int] = []
        places: list[list[Outcome]] = []
        node = ROOT
        for token_id in seen.emitted:
            places.append(self._outcomes(node, token_id))
            child = self._tree.child(node, token_id)
            if child is None:
                break
            node = child
            if node in self._rows:
                path.append(self._rows[node])
        self._shape.observe(places, len(seen.emitted))
        self._keep(path)
        self._forget()

    def _keep(self, rows: Sequence[int]) -> None:
        """Commit these of the rows that were fed, a root path."""
        self._runner.keep(rows)

    def _outcomes(self, parent: int, token_id: int) -> list[Outcome]:
        """The children of a place where `token_id` came to be. Those drawn behind it were not looked at."""
        outcomes = []
        for proposal in self._tree.proposals_under(parent):
            hit = self._tree.token_ids[proposal.node] == token_id
            outcomes.append((self._hopes[proposal.node], hit))
            if hit and self._sampler.config.temperature > 0:
                break
        return outcomes

    def _read(self, token_ids: list[int]) -> Tensor:
        """Commit text that is not in the cache yet, in one pass; logits behind its last token, (1, vocab)."""
        logits = self._runner.forward(self._readable(token_ids), last_only=True).logits
        self._runner.keep(range(len(token_ids)))
        return logits

    def _feed(self, nodes: Sequence[int]) -> Tensor:
        """One pass over these nodes of the newest level; logits behind each, (nodes, vocab)."""
        parents = [self._rows.get(self._tree.parents[node], ROOT) for node in nodes]
        for node in nodes:
            self._rows[node] = len(self._rows)
        token_ids = self._readable([self._tree.token_ids[node] for node in nodes])
        return self._runner.forward(token_ids, parents).logits

    def _readable(self, token_ids: list[int]) -> list[int]:
        return [token_id if token_id < self._loaded.vocab_size else 0 for token_id in token_ids]

    def _grow(
        self, level: dict[int, Hope], logits: Tensor, depth: int, room: int, generator: torch.Generator
    ) -> dict[int, Hope]:
        """Propose the children of a level; returns the new nodes with what is hoped of each."""
        if not torch.isfinite(logits.amax()):
            raise NumericsError(f"The draft {self.names[0]} returned NaN or infinite logits")
        shaped = self._sampler.shape(logits, [self._tree.path(node) for node in level])
        rows = self._sampler.probabilities(shaped)
        shown = self._sampler.confidence(shaped, rows)
        tops = top_candidates(shown, MAX_WIDTH)[0].tolist() if self._shape.wants_tops else []
        planned = self._shape.children(list(level.values()), tops, depth, room)
        grown: dict[int, Hope] = {}
        for i, (parent, hopes) in enumerate(zip(level, planned, strict=True)):
            if self._sampler.config.temperature == 0:
                nodes = self._list(parent, shaped[i], shown[i], len(hopes))
            else:
                nodes = self._draw(parent, rows[i], len(hopes), generator)
            grown.update(zip(nodes, hopes, strict=False))
        self._hopes.update(grown)
        return grown

    def _list(self, parent: int, shaped: Tensor, shown: Tensor, number: int) -> list[int]:
        """The best tokens of a place, as sure choices."""
        ids = top_candidates(shaped[None], number)[1][0].tolist() if number else []
        return [self._tree.add(i, parent, one_hot(i, self._sampler), shown=shown) for i in ids]

    def _draw(self, parent: int, row: Tensor, number: int, generator: torch.Generator) -> list[int]:
        """Children drawn without replacement, as many as the row has tokens."""
        nodes: list[int] = []
        for _ in range(number):
            token_id = draw(row, uniform(generator))[0]
            nodes.append(self._tree.add(token_id, parent, row))
            if len(nodes) < number:
                row = row.index_fill(0, torch.tensor(token_id, device=row.device), 0.0)
                mass = float(row.sum())
                if mass <= 0:
                    break
                row = row / mass
        return nodes
