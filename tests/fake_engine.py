"""A scripted engine behind the interface of `specviz.run`: no model, known tokens, a pass counter.

Every test of the page runs the real page over it. Probabilities are made up but consistent: a rejected
token really has `u * row >= cur`, an accepted one `u * row < cur`, and at temperature 0 all rows are one-hot, so
that `specviz.metrics.audit` has nothing to say.
"""

from __future__ import annotations

import dataclasses
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specviz.config import RunConfig
from specviz.drafts.retrieval.library import Shelf
from specviz.drafts.retrieval.reader import Document
from specviz.errors import SpecvizError
from specviz.trace import (
    ROOT,
    Event,
    FinalDraw,
    Lane,
    Node,
    Origin,
    Piece,
    Reference,
    RunFinished,
    RunStarted,
    Site,
    Step,
    Trace,
    Trial,
)

STORY = (
    (
        "The|  lighthouse| keeper| counted| the| waves| as| others| count| sheep|.|\n|Every| seventh| one|,| he"
        "| wrote| in| his| log|,| carries| a| letter| from| the| other| shore|.| No| ship| ever| came| to| fetch"
        "| them|,| so| he| answered| each| himself|,| in| a| careful| hand|,| and| gave| it| back| to| the| sea|."
    )
    .replace("The|  ", "The| ")
    .split("|")
)
WRONG = (" a", " ship", " night", " and", " old", " slowly", " was", " light")
TOP = 5
WORD = re.compile(r"\s?\S+|\s+$")
OVERLAP = 0.42  # of a row whose proposal is rejected


@dataclass
class FakeEngine:
    """`prepare` is what the page is given in place of `specviz.run.prepare`.

    `words` is what the target says, over and over. `agree` is the draft's chance to guess a token.
    `references` are texts that guesses are said to be copied from wherever they hold the same word; those on a
    shelf that the page hands in come on top.
    `base_s`, `spec_s` are real seconds of a pass; `clock_s` are the seconds written into the trace.
    """

    words: Sequence[str | bytes | Piece] = tuple(STORY)
    wrong: Sequence[str] = WRONG
    num_tokens: int | None = None  # in place of the maximum that was asked for
    agree: float = 0.72
    base_s: float = 0.0
    spec_s: float = 0.0
    prefill_s: float = 0.0
    reads_until_stopped: bool = False  # the last lane's prompt pass goes on until the run is stopped
    load_s: float = 0.0
    endless: bool = False
    fail_at: int | None = None
    refuse: str = ""
    verdicts: Literal["mixed", "accepted", "rejected"] = "mixed"
    differ_at: int | None = None
    references: Sequence[Reference] = ()
    warnings: tuple[str, ...] = ()
    passes: int = 0
    configs: list[RunConfig] = field(default_factory=list)

    def prepare(
        self,
        config: RunConfig,
        *,
        progress: Callable[[str, float | None], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        shelf: Shelf | None = None,
    ) -> FakeRun:
        if self.refuse:
            raise SpecvizError(self.refuse)
        for tenth in range(10 if self.load_s else 0):
            if progress:
                progress("Loading the target", tenth / 10)
            time.sleep(self.load_s / 10)
        seed = 11 if config.seed is None else config.seed
        config = dataclasses.replace(
            config, seed=seed, target=config.target or "fake-target", drafts=config.drafts or ("fake-draft",)
        )
        self.configs.append(config)
        if self.num_tokens is not None:
            config = dataclasses.replace(config, max_new_tokens=self.num_tokens)
        documents = shelf.documents if shelf else ()
        in_prompt = tuple(document.name for document in documents if document.in_prompt)
        config = dataclasses.replace(
            config, references=tuple(document.name for document in documents), prompt_references=in_prompt
        )
        return FakeRun(self, config, cancelled, [*self.references, *map(as_reference, documents)])

    def vocabulary(self) -> list[Piece]:
        words = [*self.words, *self.wrong]
        unique: dict[Piece, None] = {}
        for word in words:
            unique[_piece(word)] = None
        return list(unique)


def as_reference(document: Document) -> Reference:
    """A token is a word with the space before it."""
    starts = tuple(found.start() for found in WORD.finditer(document.text))
    return Reference(document.name, len(starts), document.text, starts)


def words_of(reference: Reference) -> list[str]:
    return WORD.findall(reference.text)


def _piece(word: str | bytes | Piece) -> Piece:
    if isinstance(word, Piece):
        return word
    return Piece(word.encode() if isinstance(word, str) else word)


@dataclass
class FakeRun:
    engine: FakeEngine
    config: RunConfig
    cancelled: Callable[[], bool]
    references: list[Reference] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.vocabulary = self.engine.vocabulary()
        index = {piece: i for i, piece in enumerate(self.vocabulary)}
        self.script = [index[_piece(word)] for word in self.engine.words]
        self.wrong = [index[_piece(word)] for word in self.engine.wrong]
        self.random = random.Random(f"{self.config.seed} {self.config.prompt}")
        self.warnings = self.engine.warnings
        self.words = {reference.name: words_of(reference) for reference in self.references}
        self.trace = Trace(
            config=self.config.to_json(), versions={"specviz": "test"}, references=list(self.references)
        )
        self.tokens: dict[Lane, int] = {"speculative": 0, "baseline": 0}
        self.clocks: dict[Lane, float] = {"speculative": 0.0, "baseline": 0.0}
        self.steps: dict[Lane, int] = {"speculative": 0, "baseline": 0}

    @property
    def greedy(self) -> bool:
        return self.config.temperature == 0

    def piece(self, token_id: int) -> Piece:
        return self.vocabulary[token_id]

    def events(self) -> Iterator[Event]:
        drafts: list[Lane] = [] if self.config.drafts == ("none",) else ["speculative"]
        lanes: list[Lane] = [*drafts, "baseline"] if self.config.baseline or not drafts else drafts
        for event in self._race(lanes):
            for token_id in Trace(events=[event]).ids_used():
                self.trace.pieces[token_id] = self.piece(token_id)
            self.trace.events.append(event)
            yield event

    def _race(self, lanes: list[Lane]) -> Iterator[Event]:
        for lane in lanes:
            time.sleep(self.engine.prefill_s)
            while self.engine.reads_until_stopped and lane == lanes[-1] and not self.cancelled():
                time.sleep(0.01)
            yield self._started(lane)
        running = list(lanes)
        while running:
            lane = min(running, key=lambda name: self.clocks[name])
            reason = self._reason(lane)
            if reason is None:
                yield self._speculate() if lane == "speculative" else self._plain()
                continue
            message = "The target returned NaN logits in step 4." if reason == "error" else ""
            yield RunFinished(lane, reason, self.tokens[lane], self.clocks[lane], message)  # type: ignore[arg-type]
            running = [] if reason == "error" else [name for name in running if name != lane]

    def _reason(self, lane: Lane) -> str | None:
        if self.cancelled():
            return "cancelled"
        if self.engine.fail_at is not None and self.steps[lane] >= self.engine.fail_at:
            return "error"
        if self.engine.endless:
            return None
        return "length" if self.tokens[lane] >= self.config.max_new_tokens else None

    def _started(self, lane: Lane) -> RunStarted:
        config = self.config
        prompt_ids = tuple(self.script[:3])
        return RunStarted(
            lane, prompt_ids, config.target, config.drafts, config.seed or 0, "bfloat16", "cpu", True,
            0.21, ((1, 0.0275), (2, 0.0276), (4, 0.028), (8, 0.030), (16, 0.0364), (32, 0.05)),
        )  # fmt: skip

    def _next(self, lane: Lane, ahead: int = 0) -> int:
        position = self.tokens[lane] + ahead
        if lane == "speculative" and position == self.engine.differ_at:
            return self.wrong[0]
        return self.script[position % len(self.script)]

    def _tick(self, lane: Lane, seconds: float, num_tokens: int) -> float:
        self.engine.passes += 1
        self.tokens[lane] += num_tokens
        self.steps[lane] += 1
        self.clocks[lane] += seconds
        return self.clocks[lane]

    def _plain(self) -> Step:
        time.sleep(self.engine.base_s)
        token_id, start, index = self._next("baseline"), self.tokens["baseline"], self.steps["baseline"]
        seconds = 0.0275 * self.random.uniform(0.97, 1.05)
        clock = self._tick("baseline", seconds, 1)
        site = Site(ROOT, (), self._top(token_id, 0.8), (), (), 2.4)
        share = 1.0 if self.greedy else 0.8
        final = FinalDraw(token_id, "plain", 0.31, 0.0, share, 1.0, share, 1)
        return Step(
            "baseline", index, start, 0, (), (site,), final, (token_id,),
            0.0, seconds - 0.0011, seconds, clock,
        )  # fmt: skip

    def _top(self, best: int, mass: float) -> tuple[tuple[int, float], ...]:
        others = [i for i in self.wrong if i != best][: TOP - 1]
        left = 1.0 - mass
        top = [(best, mass)]
        for other in others:
            left *= 0.55
            top.append((other, round(left * 0.8, 6)))
        return tuple(sorted(top, key=lambda pair: -pair[1]))

    def _speculate(self) -> Step:
        time.sleep(self.engine.spec_s)
        lane: Lane = "speculative"
        room = self.config.max_new_tokens - self.tokens[lane] if not self.engine.endless else 99
        gamma = self.config.draft_len if isinstance(self.config.draft_len, int) else 4
        gamma = min(gamma, room - 1)
        nodes, sites = self._draft(gamma)
        accepted = sum(node.verdict == "accepted" for node in nodes)
        final, sites = self._final(nodes, sites, accepted)
        emitted = (*(n.token_id for n in nodes if n.verdict == "accepted"), final.token_id)
        start, index = self.tokens[lane], self.steps[lane]
        draft_s = 0.0021 * gamma * self.random.uniform(0.95, 1.1)
        verify_s = 0.0285 * self.random.uniform(0.98, 1.04)
        total = draft_s + verify_s + 0.0013
        clock = self._tick(lane, total, len(emitted))
        return Step(
            lane, index, start, gamma, tuple(nodes), tuple(sites), final, emitted,
            draft_s, verify_s, total, clock,
        )  # fmt: skip

    def _guesses(self) -> bool:
        if self.engine.verdicts != "mixed":
            return self.engine.verdicts == "accepted"
        return self.random.random() < self.engine.agree

    def _draft(self, gamma: int) -> tuple[list[Node], list[Site]]:
        nodes: list[Node] = []
        sites: list[Site] = []
        alive = True
        for depth in range(gamma):
            right = self._next("speculative", depth)
            guess = right if self._guesses() else self._other(right)
            verdict = "untested" if not alive else "accepted" if guess == right else "rejected"
            row = round(self.random.uniform(0.35, 0.75), 4)
            nodes.append(Node(guess, depth - 1, depth + 1, verdict, (0,), row, self._origin(guess)))  # type: ignore[arg-type]
            if alive:
                sites.append(self._site(depth, nodes[-1], right, row))
            alive = alive and verdict == "accepted"
        return nodes, sites

    def _origin(self, guess: int) -> Origin | None:
        """The first place of that word behind the last one, in any reference."""
        word = self.piece(guess).data.decode(errors="replace")
        for name, words in self.words.items():
            if word in words:
                return Origin(name, words.index(word), min(3, words.index(word)) or 1)
        return None

    def _other(self, right: int) -> int:
        return next(i for i in self.random.sample(self.wrong, 3) if i != right)

    def _site(self, depth: int, node: Node, right: int, row: float) -> Site:
        ok = node.verdict == "accepted"
        p = round(self.random.uniform(0.5, 0.98), 4) if ok else round(row * self.random.uniform(0.02, 0.4), 4)
        bound = min(1.0, p / row)
        u = self.random.uniform(0, bound * 0.999) if ok else self.random.uniform(bound, 0.9999)
        trial = Trial(depth, 0, p, p, row, u, min(1.0, p + 0.1) if ok else OVERLAP, 1 if ok else 4, ok)
        if self.greedy:
            trial = dataclasses.replace(trial, p_target=float(ok), cur=float(ok), row=1.0, overlap=float(ok))
        best = self._top(right, max(p, 0.62) if ok else 0.74)
        if not ok:
            best = tuple(sorted([*best[:-1], (node.token_id, p)], key=lambda pair: -pair[1]))
        residual = () if ok else self._top(right, 0.9)
        return Site(depth - 1, (trial,), best, self._top(node.token_id, row), residual, 1.7)

    def _final(self, nodes: list[Node], sites: list[Site], accepted: int) -> tuple[FinalDraw, list[Site]]:
        token_id = self._next("speculative", accepted)
        if accepted == len(nodes):
            kind = "bonus" if nodes else "plain"
            sites = [*sites, Site(len(nodes) - 1, (), self._top(token_id, 0.77), (), (), 2.0)]
            share = 1.0 if self.greedy else 0.77
            return FinalDraw(token_id, kind, 0.42, 0.0, share, 1.0, share, 1), sites  # type: ignore[arg-type]
        if self.greedy:
            return FinalDraw(token_id, "corrected", 0.37, 0.0, 1.0, 1.0, 1.0, 1), sites
        return FinalDraw(token_id, "corrected", 0.37, 0.0, 0.9, 1 - OVERLAP, 0.74, 1), sites


def recorded(engine: FakeEngine | None = None, **settings: object) -> Trace:
    """The whole trace of a run that takes no time."""
    run = (engine or FakeEngine()).prepare(RunConfig(**{"max_new_tokens": 48, **settings}))  # type: ignore[arg-type]
    for _ in run.events():
        pass
    return run.trace
