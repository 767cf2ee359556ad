"""Events of a run as JSON deltas for the browser.

Owns: the wire format between the engine's values and `assets/viz`. A delta is numbered (`run`, `seq`), so
the page can tell what it missed and ask for it. Must not know gradio, torch or where events come from: a
recorded trace and a live run go through the same `Feed`.

Wire format: `{"run", "seq", "phase", "note", "start"?, "pieces"?, "sources"?, "events", "end"?}`. An event is
`{"lane", "i", "t", "chips", "sites", "row"}`; a chip `{"id", "kind", "x"?, ...}` has the text `x` only
where the context makes it differ from the piece's own text. Numbers keep five significant digits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from specviz.metrics import Tally, count_step
from specviz.text import Detokenizer
from specviz.trace import (
    ROOT,
    Candidates,
    Event,
    FinalDraw,
    Lane,
    Node,
    Piece,
    RunFinished,
    RunStarted,
    Site,
    Step,
    Trial,
    event_ids,
)
from specviz.view.pieces import describe, in_context

Phase = Literal["loading", "running", "done", "error"]
LANES: tuple[Lane, ...] = ("speculative", "baseline")
FIELDS = (
    "tokens",
    "passes",
    "drafted",
    "tested",
    "accepted",
    "decode_s",
    "draft_s",
    "verify_s",
    "rest_s",
    "overlap",
    "acceptance_rate",
    "rolling_rate",
    "step_rate",
    "draft_yield",
    "tokens_per_pass",
    "tokens_per_s",
    "speedup",
)


def as_text(value: Any) -> str:
    """JSON without a `<`, so that it is inert wherever a page may carry it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def rounded(value: float | None) -> float | None:
    """Five significant digits: what the page can show, at a third of the bytes."""
    return value if value is None or isinstance(value, int) else float(f"{value:.5g}")


class Feed:
    """Turns the events of one run, in order, into numbered deltas."""

    def __init__(self, run: str, piece: Callable[[int], Piece], config: Mapping[str, Any]) -> None:
        self.run = run
        self.seq = 0
        self.tally = Tally(config)
        self._piece = piece
        self._known: set[int] = set()
        self._sources: dict[str, int] = {}
        self._text: dict[Lane, Detokenizer] = {lane: Detokenizer() for lane in LANES}

    def delta(
        self, events: Iterable[Event] = (), *, phase: Phase = "running", note: str = "", **more: Any
    ) -> dict[str, Any]:
        """The next delta, holding `events`; `more` adds parts such as `start` and `end`."""
        events = list(events)
        num_sources = len(self._sources)
        message = {
            "run": self.run,
            "seq": self.seq,
            "phase": phase,
            "note": note,
            "pieces": self._new_pieces(events),
            "events": [self._event(event) for event in events],
            **more,
        }
        if len(self._sources) > num_sources:
            message["sources"] = list(self._sources)[num_sources:]
        self.seq += 1
        return message

    def _new_pieces(self, events: Sequence[Event]) -> dict[str, Any]:
        ids = {token_id for event in events for token_id in event_ids(event)}
        fresh = ids - self._known
        self._known |= fresh
        return {str(i): describe(self._piece(i)) for i in sorted(fresh)}

    def _event(self, event: Event) -> dict[str, Any]:
        self.tally.add(event)
        if isinstance(event, RunStarted):
            return _started(event)
        if isinstance(event, RunFinished):
            return _finished(event)
        return self._step(event)

    def _step(self, step: Step) -> dict[str, Any]:
        return {
            "kind": "step",
            "lane": step.lane,
            "i": step.index,
            "t": rounded(step.clock_s),
            "gamma": step.draft_len,
            "chips": self._chips(step),
            "sites": [_site(site, bare=_is_chain(step)) for site in step.sites],
            "row": self._row(step),
        }

    def _row(self, step: Step) -> list[float | None]:
        """The lane's running numbers after this step, in the order of `FIELDS`."""
        lane = self.tally.lanes[step.lane]
        counts, split = lane.counts, lane.time_split
        rolling = self.tally.rolling_acceptance.y
        values = (
            counts.emitted,
            counts.passes,
            counts.drafted,
            counts.tested,
            counts.accepted,
            lane.clock_s,
            split.draft_s,
            split.verify_s,
            split.rest_s,
            counts.overlap,
            counts.acceptance_rate,
            rolling[-1] if rolling and step.lane == "speculative" else None,
            count_step(step).acceptance_rate,
            counts.draft_yield,
            counts.tokens_per_pass,
            lane.tokens_per_s,
            self.tally.current_speedup(),
        )
        return [rounded(value) for value in values]

    def _chips(self, step: Step) -> list[dict[str, Any]]:
        """Drafted nodes in the order of the tree, then the target's own token."""
        text = {ROOT: self._text[step.lane]}
        end = ROOT
        chips = []
        for index, node in enumerate(step.nodes):
            context, text[index] = in_context(self._piece(node.token_id), text[node.parent])
            judged = _judgement(index, node, step.sites)
            chips.append({"id": node.token_id, "kind": node.verdict, **context, **judged, **self._origin(node)})
            end = index if node.verdict == "accepted" else end
        after = text[end]
        if step.final is not None:
            context, after = in_context(self._piece(step.final.token_id), after)
            site = len(step.sites) - 1
            chips.append({"id": step.final.token_id, **_final(step.final), **context, "site": site})
        self._text[step.lane] = after
        return chips

    def _origin(self, node: Node) -> dict[str, Any]:
        """Where a copied token stood: number of the source, offset in it, length of the match."""
        if node.origin is None:
            return {}
        source = self._sources.setdefault(node.origin.source, len(self._sources))
        return {"o": [source, node.origin.offset, node.origin.match_len]}


def _final(final: FinalDraw) -> dict[str, Any]:
    return {
        "kind": final.kind,
        "p": rounded(final.p_target),
        "u": rounded(final.u),
        "rank": final.rank,
        "low": rounded(final.low),
        "high": rounded(final.high),
        "mass": rounded(final.mass),
    }


def _judgement(index: int, node: Node, sites: Sequence[Site]) -> dict[str, Any]:
    """The trials of a drafted node; the last one decided."""
    found: dict[str, Any] = {"node": index, "parent": node.parent, "q": rounded(node.q_draft)}
    if node.proposers != (0,):
        found["by"] = list(node.proposers)
    for position, site in enumerate(sites):
        for trial in site.trials:
            if trial.node == index:
                found.update(
                    p=rounded(trial.p_target),
                    cur=rounded(trial.cur),
                    q=rounded(trial.row),
                    own=rounded(node.q_draft),
                    u=rounded(trial.u),
                    rank=trial.rank,
                    a=rounded(_chance(site, trial)),
                    site=position,
                )
    return found


def _chance(site: Site, trial: Trial) -> float:
    """Of being accepted; under the naive rule the target's own probability of the token."""
    if site.drawn is not None:
        return trial.cur
    return min(1.0, trial.cur / trial.row) if trial.row else 1.0


def _is_chain(step: Step) -> bool:
    """One draft's tokens in a row: every site has one trial, and the chips say it all."""
    return all(node.parent == index - 1 and node.proposers == (0,) for index, node in enumerate(step.nodes))


def _site(site: Site, *, bare: bool) -> dict[str, Any]:
    """Tops and gap; in a tree also the trials in order, each as node, proposer, left of p, q and draw."""
    found: dict[str, Any] = {
        "p": _top(site.p_top),
        "q": _top(site.q_top),
        "r": _top(site.residual_top),
        "gap": rounded(site.top2_gap),
    }
    if not bare:
        found["t"] = [
            [trial.node, trial.proposer, rounded(trial.cur), rounded(trial.row), rounded(trial.u)]
            for trial in site.trials
        ]
    return found


def _top(candidates: Candidates) -> list[list[Any]]:
    return [[token_id, rounded(probability)] for token_id, probability in candidates]


def _started(event: RunStarted) -> dict[str, Any]:
    return {
        "kind": "started",
        "lane": event.lane,
        "target": event.target,
        "proposers": list(event.proposers),
        "seed": str(event.seed),
        "dtype": event.dtype,
        "device": event.device,
        "bit_exact": event.bit_exact,
        "prefill_s": rounded(event.prefill_s),
        "plain_pass_s": rounded(dict(event.pass_times).get(1)),
        "num_prompt_tokens": event.num_prompt_tokens,
    }


def _finished(event: RunFinished) -> dict[str, Any]:
    return {
        "kind": "finished",
        "lane": event.lane,
        "reason": event.reason,
        "num_tokens": event.num_tokens,
        "decode_s": rounded(event.decode_s),
        "message": event.message,
    }
