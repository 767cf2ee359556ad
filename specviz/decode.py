"""Draft, verify, repeat: the decode loops, as generators of events.

Owns: `speculate`, `autoregress` and `race`: what a step is, when a run ends, whose turn it is, and the
clock of a lane. Must not know where models or texts come from, or who watches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specviz.config import DEFAULT_DRAFT_LEN, MAX_TREE_NODES, RunConfig
from specviz.drafts import DraftSource, Observation, ReadsPrompt, SharesCache, most_copied
from specviz.drafts.length import AutoLength, FixedLength, LengthPolicy
from specviz.drafts.merge import MergedDraft
from specviz.drafts.shape import affordable_nodes
from specviz.errors import ContextError, NumericsError
from specviz.models import LoadedModel
from specviz.record import Rows, record_final, record_nodes, record_sites
from specviz.runner import Pass, Runner
from specviz.sampling import Sampler
from specviz.trace import Event, Lane, RunFinished, RunStarted, Step, StopReason
from specviz.verify import RULES, TokenTree, Walk


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a lane takes from outside, so that tests can set it.

    `stops` is told every emitted id and says whether a stop string is complete; each lane needs its own.
    """

    seed: int = 0
    stops: Callable[[int], bool] = lambda _: False
    cancelled: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.perf_counter


def speculate(
    target: LoadedModel,
    source: DraftSource,
    prompt_ids: Sequence[int],
    config: RunConfig,
    around: Surroundings,
) -> Iterator[Event]:
    """Decode with drafts: `RunStarted`, then `Step`s, then `RunFinished`.

    At temperature 0 the ids equal plain greedy decoding; above it their law is the target's
    (2211.17192, App. A.1; 2305.09781, Thm. 4.2). NaN logits end the run; what was made stays.

    Raises:
        ContextError: at the first `next`, a prompt that does not fit the target's context.
    """
    return _decode("speculative", target, source, prompt_ids, config, around)


def autoregress(
    target: LoadedModel, prompt_ids: Sequence[int], config: RunConfig, around: Surroundings
) -> Iterator[Event]:
    """Plain decoding, one token a pass: the same loop with nobody drafting."""
    return _decode("baseline", target, None, prompt_ids, config, around)


def race(*lanes: Iterator[Event]) -> Iterator[Event]:
    """All lanes' events; the turn is always with the lane whose own clock is behind (the first, if equal).

    Each lane's clock counts its own steps only, so that all are measured in turn on one machine in one state.
    Lanes are closed when the race is.
    """
    running = dict.fromkeys(lanes, 0.0)
    try:
        while running:
            lane = min(running, key=lambda each: running[each])
            event = next(lane, None)
            if event is None:
                del running[lane]
                continue
            if isinstance(event, Step):
                running[lane] = event.clock_s
            yield event
    finally:
        for lane in lanes:
            if hasattr(lane, "close"):
                lane.close()


def check_prompt(prompt_ids: Sequence[int], target: LoadedModel) -> None:
    """Refuse a prompt that leaves no position to decode at.

    Raises:
        ContextError: empty, or longer than the context.
    """
    if not prompt_ids:
        raise ContextError("The prompt has no tokens; give at least one.")
    if target.context_len and len(prompt_ids) > target.context_len:
        raise ContextError(
            f"The prompt has {len(prompt_ids):,} tokens, but {target.name} takes at most {target.context_len:,}; "
            "shorten it."
        )


def _decode(
    name: Lane,
    target: LoadedModel,
    source: DraftSource | None,
    prompt_ids: Sequence[int],
    config: RunConfig,
    around: Surroundings,
) -> Iterator[Event]:
    check_prompt(prompt_ids, target)
    lane = _Lane(name, target, source, list(prompt_ids), config, around)
    message = ""
    try:
        yield lane.read_prompt()
        while not (reason := lane.reason()):
            yield lane.step()
    except NumericsError as error:
        reason = "error"
        message = f"{error} in step {lane.num_steps + 1}; the run ends here. Another dtype may help."
    yield RunFinished(name, reason, lane.num_new, lane.clock_s, message)


@dataclass
class _Lane:
    """The state of one decoding: its text, cache, generator, length policy and clock."""

    name: Lane
    target: LoadedModel
    source: DraftSource | None
    context_ids: list[int]
    config: RunConfig
    around: Surroundings
    num_steps: int = 0
    num_new: int = 0
    clock_s: float = 0.0
    ended: StopReason | None = None
    runner: Runner = field(init=False)
    sampler: Sampler = field(init=False)
    generator: torch.Generator = field(init=False)
    policy: LengthPolicy = field(init=False)
    most_nodes: int = field(init=False)

    def __post_init__(self) -> None:
        capacity = len(self.context_ids) + self.config.max_new_tokens + MAX_TREE_NODES
        self.runner = Runner(self.target, capacity=capacity)
        self.sampler = Sampler(
            self.config,
            self.context_ids,
            vocab_size=self.target.vocab_size,
            eos_ids=self.target.eos_ids,
            device=self.target.device,
        )
        # One stream a lane, so that neither disturbs the other and a seed fixes each.
        self.generator = torch.Generator().manual_seed(2 * self.around.seed + (self.name == "baseline"))
        chosen = self.config.draft_len or DEFAULT_DRAFT_LEN
        times = sorted(self.target.pass_times.items())
        copied = most_copied(self.source) if self.source else 0
        self.policy = AutoLength(times) if chosen == "auto" else FixedLength(max(chosen, copied))
        self.most_nodes = affordable_nodes(times, MAX_TREE_NODES)

    @property
    def _wants_hidden(self) -> bool:
        return self.source is not None and self.source.wants_hidden

    def read_prompt(self) -> RunStarted:
        """The prompt pass: feed all tokens but the last, in the target and the drafts."""
        start = self.around.clock()
        prompt_ids = tuple(self.context_ids)
        states = self.runner.prefill(self.context_ids[:-1], self.around.cancelled, with_hidden=self._wants_hidden)
        if isinstance(self.source, SharesCache):
            self.source.share(self.runner.cache)
        if self.source:
            self.source.start(self.context_ids, self.sampler, self.around.cancelled)
        if isinstance(self.source, ReadsPrompt) and states:
            self.source.read_prompt(torch.cat(states))
        return RunStarted(
            lane=self.name,
            prompt_ids=prompt_ids,
            target=self.target.name,
            proposers=self.source.names if self.source else (),
            seed=self.around.seed,
            dtype=str(self.target.dtype).removeprefix("torch."),
            device=str(self.target.device),
            bit_exact=self.target.bit_exact,
            prefill_s=self.around.clock() - start,
            pass_times=tuple(sorted(self.target.pass_times.items())),
        )

    def reason(self) -> StopReason | None:
        """Why there is no further step, or None."""
        if self.ended:
            return self.ended
        if self.around.cancelled():
            return "cancelled"
        full = self.target.context_len and len(self.context_ids) > self.target.context_len
        return "context" if full else None

    def step(self) -> Step:
        """One draft-then-verify pass, timed from resume to all but the making of the `Step` itself."""
        clock, began = self.around.clock, self.around.clock()
        draft_len = self._draft_len()
        tree = self._draft(draft_len)
        drafted = clock()
        ran = self._pass(tree)
        verified = clock()
        rows = self._rows(tree, ran.logits)
        start = self.num_new
        walk = RULES[self.config.rule](tree, rows.p, self.generator, self._ends_with)
        sites = record_sites(tree, walk, rows, self.sampler)
        emitted = self._commit(tree, walk)
        if self.source:
            self.source.observe(Observation(emitted, tree, walk.path, ran.logits, ran.hidden))
        nodes, final = record_nodes(tree, walk), record_final(walk, rows)
        total_s = clock() - began
        self.clock_s += total_s
        step = Step(
            lane=self.name,
            index=self.num_steps,
            start=start,
            draft_len=draft_len,
            nodes=nodes,
            sites=sites,
            final=final,
            emitted=emitted,
            draft_s=drafted - began,
            verify_s=verified - drafted,
            total_s=total_s,
            clock_s=self.clock_s,
        )
        self.num_steps += 1
        self.policy.observe(step)
        return step

    def _depth(self) -> int:
        """Levels to draft at most: what the profile, the tokens still wanted and the positions left allow."""
        depth = self.sampler.num_draftable
        if self.target.context_len:
            depth = min(depth, self.target.context_len - len(self.context_ids))
        plan = self.config.tree_plan
        return max(min(depth, len(plan.widths)) if plan and plan.widths else depth, 0)

    def _draft_len(self) -> int:
        """Nodes to draft at most. A chain has one a level; of a profile each draft grows a tree of its own."""
        depth, plan = self._depth(), self.config.tree_plan
        if self.source is None or plan is None:
            return min(self.policy.next_len(), depth) if self.source else 0
        num_trees = len(self.source.sources) if plan.widths and isinstance(self.source, MergedDraft) else 1
        chosen = plan.most_nodes(depth)
        return min(MAX_TREE_NODES, chosen * num_trees if chosen is not None else self.most_nodes) if depth else 0

    def _draft(self, draft_len: int) -> TokenTree:
        if self.source is None or draft_len == 0:
            return TokenTree()
        return self.source.propose(self.context_ids, draft_len, self.generator).cut(self._depth())

    def _pass(self, tree: TokenTree) -> Pass:
        """The target's one pass: over the last committed token and the whole tree behind it."""
        token_ids = [self.context_ids[-1], *tree.token_ids]
        parents = [-1, *(parent + 1 for parent in tree.parents)]
        ran = self.runner.forward(token_ids, parents, with_hidden=self._wants_hidden)
        if not torch.isfinite(ran.logits.amax(-1)).all():  # a NaN anywhere, or a row without a largest number
            raise NumericsError(f"The target {self.target.name} returned NaN or infinite logits")
        return ran

    def _rows(self, tree: TokenTree, logits: Tensor) -> Rows:
        paths = [[], *(tree.path(node) for node in range(len(tree)))]
        shaped = self.sampler.shape(logits, paths)
        return Rows(shaped, self.sampler.probabilities(shaped))

    def _commit(self, tree: TokenTree, walk: Walk) -> tuple[int, ...]:
        """Make the walk's tokens part of the text, everywhere that keeps one; return them."""
        emitted = [tree.token_ids[node] for node in walk.path]
        if walk.final is not None:
            emitted.append(walk.final.token_id)
            self._ends_with(walk.final.token_id)
        self.runner.keep([0, *(node + 1 for node in walk.path)])
        self.context_ids.extend(emitted)
        self.sampler.commit(emitted)
        return tuple(emitted)

    def _ends_with(self, token_id: int) -> bool:
        """Count an emitted token; true where it is the last, with the reason noted."""
        self.num_new += 1
        if token_id in self.target.eos_ids and not self.config.ignore_eos:
            self.ended = "eos"
        elif self.around.stops(token_id):
            self.ended = "stop"
        elif self.num_new == self.config.max_new_tokens:
            self.ended = "length"
        return self.ended is not None
