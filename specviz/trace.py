"""What happened: plain values for every drafted node, trial and draw, and their one JSON form.

Owns: `Trial`, `Site`, `Node`, `FinalDraw`, `Step`, `RunStarted`, `RunFinished`, `Trace`. A recorded trace
and a live run are the same thing to everything above the engine. Must not know tensors, models or
text: a token is an int id, and only a kept trace carries a table from id to bytes, so that a replay
needs no tokenizer.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import sys
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from specviz.errors import TraceError

FORMAT = "specviz-trace"
VERSION = 1
REMEDY = "give a file that “Save trace” on the page or --trace on the command line has written"
MAX_TRACE_BYTES = 64 * 2**20
MAX_NODES = 1024  # in one step; no draft here comes near, and what reads a step may take time for each pair
ROOT = -1

Lane = Literal["speculative", "baseline"]
Verdict = Literal["accepted", "rejected", "untested"]
FinalKind = Literal["corrected", "bonus", "plain"]
StopReason = Literal["eos", "stop", "length", "context", "cancelled", "error"]
Candidates: TypeAlias = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """One throw for one proposal: accepted exactly when `u * row < cur` (Leviathan et al. 2211.17192, §2.3),
    under the naive rule when its token is the one that the target drew (`Site.drawn`).

    `p_target` is the target's probability of the token, `cur` what was left of it when this proposal was
    tried (equal to `p_target` at a site's first trial), `row` the probability the draft drew it with,
    `u` the uniform draw in [0, 1). `overlap` is Σ min(cur, row), the chance a proposal from this row had.
    `rank` counts from 1 in the target's order.
    """

    node: int
    proposer: int
    p_target: float
    cur: float
    row: float
    u: float
    overlap: float
    rank: int
    accepted: bool


@dataclass(frozen=True, slots=True)
class OwnDraw:
    """The token that the naive rule drew from p_target before it looked at the tree: `u` lies in [low, high)."""

    token_id: int
    u: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Site:
    """A place where the next token was decided: after the root path that ends in `node` (`ROOT`: none).

    The three tops are (id, probability), best first: of the target and of the first proposal's row, both
    at the run's temperature (at temperature 0 as at 1, for the eye; the rule itself used one-hot rows),
    and of the residual from which the final token was drawn (empty where a proposal was accepted).
    `top2_gap` is the target's best logit less its second, after penalties. `drawn` is there under the naive rule
    only: each trial then compares its token with that one, has `u` of that draw, and takes nothing away from
    p_target (`cur` stays `p_target`).
    """

    node: int
    trials: tuple[Trial, ...]
    p_top: Candidates
    q_top: Candidates
    residual_top: Candidates
    top2_gap: float
    drawn: OwnDraw | None = None


PROMPT, OUTPUT = "prompt", "output"
"""Sources of copies that are no files."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a copied token stood: `offset` tokens into `source` (a file's name, `PROMPT` or `OUTPUT`).

    The last `match_len` tokens of the text before the step stand before the copy there, too.
    """

    source: str
    offset: int
    match_len: int


@dataclass(frozen=True, slots=True)
class Node:
    """One drafted token of a step's tree. `parent` is an index into the step's nodes, or `ROOT`.

    `q_draft` is the first proposer's own probability of the token: at temperature 0 as at 1, and 1 for copies.
    `origin` is where it was copied from, None where no proposer copied it.
    """

    token_id: int
    parent: int
    depth: int
    verdict: Verdict
    proposers: tuple[int, ...]
    q_draft: float
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class FinalDraw:
    """The target's own token at the end of a pass: drawn from what the rejected rows left of p_target.

    The token is the one whose interval [low, high) of the cumulative residual holds `u`. `mass` is
    Σ max(0, cur − row) of the last rejection before it was normalised, 1 where nothing was rejected.
    """

    token_id: int
    kind: FinalKind
    u: float
    low: float
    high: float
    mass: float
    p_target: float
    rank: int


@dataclass(frozen=True, slots=True)
class Step:
    """One draft-then-verify pass of one lane. Plain decoding is a step without nodes.

    `start` new tokens stood before this step and `emitted` ids came with it: the accepted path, then the
    final draw (None where a stop condition met inside the path). Seconds are of the lane's own clock:
    from resume to yield; `clock_s` is its reading after this step, the prompt pass excluded.
    """

    lane: Lane
    index: int
    start: int
    draft_len: int
    nodes: tuple[Node, ...]
    sites: tuple[Site, ...]
    final: FinalDraw | None
    emitted: tuple[int, ...]
    draft_s: float
    verify_s: float
    total_s: float
    clock_s: float

    @property
    def num_drafted(self) -> int:
        return len(self.nodes)

    @property
    def num_tested(self) -> int:
        return sum(node.verdict != "untested" for node in self.nodes)

    @property
    def num_accepted(self) -> int:
        return sum(node.verdict == "accepted" for node in self.nodes)


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The prompt pass of a lane is over (all prompt tokens but the last were fed; nothing was emitted).

    `proposers` names the draft sources; trials and nodes refer to them by index. `bit_exact` says whether a
    block's logits equal single passes bit for bit here, or to rounding. `pass_times` are (block size,
    seconds) of one target pass, measured at load. `num_left_out` prompt ids are missing in a trace that was kept
    without the references that stood in its prompt; `prompt_ids` is empty then.
    """

    lane: Lane
    prompt_ids: tuple[int, ...]
    target: str
    proposers: tuple[str, ...]
    seed: int
    dtype: str
    device: str
    bit_exact: bool
    prefill_s: float
    pass_times: tuple[tuple[int, float], ...]
    num_left_out: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_ids) + self.num_left_out


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The lane's end. `message` is the sentence of an error, empty otherwise."""

    lane: Lane
    reason: StopReason
    num_tokens: int
    decode_s: float
    message: str = ""


Event: TypeAlias = RunStarted | Step | RunFinished
_EVENTS: dict[str, type] = {"started": RunStarted, "step": Step, "finished": RunFinished}
_EVENT_NAMES = {cls: name for name, cls in _EVENTS.items()}


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes of one token; `special` ones (end of text, chat marks) are no part of the plain text."""

    data: bytes
    special: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """A text that could be copied from. `text` and `starts` (the character at which each token begins) are empty
    where the text was not kept: what was copied stands in the nodes anyway.
    """

    name: str
    num_tokens: int
    text: str = ""
    starts: tuple[int, ...] = ()


@dataclass
class Trace:
    """All events of a run in order, with its settings and the bytes of every id it uses."""

    config: dict[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    pieces: dict[int, Piece] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    references: list[Reference] = field(default_factory=list)

    def started(self, lane: Lane) -> RunStarted | None:
        return next((e for e in self.events if isinstance(e, RunStarted) and e.lane == lane), None)

    def finished(self, lane: Lane) -> RunFinished | None:
        return next((e for e in self.events if isinstance(e, RunFinished) and e.lane == lane), None)

    def steps(self, lane: Lane) -> list[Step]:
        return [event for event in self.events if isinstance(event, Step) and event.lane == lane]

    def token_ids(self, lane: Lane) -> list[int]:
        """All emitted ids of a lane, in order."""
        return [token_id for step in self.steps(lane) for token_id in step.emitted]

    def ids_used(self) -> set[int]:
        """Every id that a replay may have to show, tops included."""
        ids: set[int] = set()
        for event in self.events:
            ids |= event_ids(event)
        return ids

    def without_texts(self) -> Trace:
        """The same without the texts of references: of these only the copied excerpts stay, in the nodes."""
        hidden = bool(self.config.get("prompt_references"))
        events = [_without_prompt(e) if hidden and isinstance(e, RunStarted) else e for e in self.events]
        bare = [dataclasses.replace(reference, text="", starts=()) for reference in self.references]
        trace = Trace(self.config, events, self.pieces, self.versions, bare)
        used = trace.ids_used()
        trace.pieces = {token_id: piece for token_id, piece in self.pieces.items() if token_id in used}
        return trace

    def to_json(self) -> str:
        """The whole trace as one JSON document; `from_json` gives an equal trace back.

        Raises:
            TraceError: it would be larger than `from_json` reads.
        """
        text = json.dumps(
            {
                "format": FORMAT,
                "version": VERSION,
                "versions": self.versions,
                "config": self.config,
                "pieces": {str(i): [p.data.hex(), p.special] for i, p in sorted(self.pieces.items())},
                "references": [dataclasses.asdict(reference) for reference in self.references],
                "events": [event_to_json(event) for event in self.events],
            },
            separators=(",", ":"),
            allow_nan=False,
        )
        if len(text) > MAX_TRACE_BYTES:  # all of it is ASCII
            raise TraceError(
                f"The trace of this run has {len(text) / 2**20:,.0f} MB, more than the {MAX_TRACE_BYTES // 2**20} "
                "that can be read back, so it is not written; decode fewer tokens, or draft fewer in each pass."
            )
        return text

    @classmethod
    def from_json(cls, text: str | bytes) -> Trace:
        """Read a trace that may come from anywhere.

        Raises:
            TraceError: too large, no JSON, another program's file, an unknown version, or a value out of
                place; the sentence says which.
        """
        if len(text) > MAX_TRACE_BYTES:
            most = f"{MAX_TRACE_BYTES // 2**20} MB"
            raise TraceError(f"The trace is larger than {most}, the most that can be read; record a shorter run.")
        try:
            data = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise TraceError(_not_json(error)) from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise TraceError(f"The file is JSON, but not a specviz trace; {REMEDY}.")
        if data.get("version") != VERSION:
            version = str(data.get("version"))[:40]
            what = f"The trace has version {version}, but this program reads version {VERSION}"
            raise TraceError(f"{what}; open it with the specviz that wrote it, or record the run anew.")
        try:
            trace = cls(
                config=_parse(dict[str, Any], data["config"], "config"),
                versions=_parse(dict[str, str], data["versions"], "versions"),
                pieces={int(key): _parse_piece(value) for key, value in data["pieces"].items()},
                references=[_parse(Reference, item, "reference") for item in data.get("references", [])],
                events=[event_from_json(event) for event in data["events"]],
            )
        except KeyError as error:
            raise _damaged(f"it has no {error}") from None
        except (ValueError, TypeError, AttributeError):
            raise _damaged("its table of tokens or its list of events is not of the right form") from None
        _check_structure(trace)
        return trace


def _without_prompt(started: RunStarted) -> RunStarted:
    return dataclasses.replace(started, prompt_ids=(), num_left_out=started.num_prompt_tokens)


def _damaged(what: str) -> TraceError:
    return TraceError(f"The trace is damaged: {what}; {REMEDY}.")


def _not_json(error: Exception) -> str:
    """Where a file stops being JSON, for a reader who has never seen a parser."""
    place = getattr(error, "pos", 0)
    if place:
        return f"The file is not JSON from character {place + 1:,} on, so it is cut off or damaged; {REMEDY}."
    return f"The file is not JSON, so it is no trace; {REMEDY}."


def event_ids(event: Event) -> set[int]:
    """Every token id that an event mentions."""
    if isinstance(event, RunStarted):
        return set(event.prompt_ids)
    return _step_ids(event) if isinstance(event, Step) else set()


def _step_ids(step: Step) -> set[int]:
    ids = set(step.emitted) | {node.token_id for node in step.nodes}
    if step.final is not None:
        ids.add(step.final.token_id)
    for site in step.sites:
        ids.update(token_id for top in (site.p_top, site.q_top, site.residual_top) for token_id, _ in top)
    return ids


def event_to_json(event: Event) -> dict[str, Any]:
    """One event as plain JSON values, told apart by its key `event`."""
    return {"event": _EVENT_NAMES[type(event)], **dataclasses.asdict(event)}


def event_from_json(data: object) -> Event:
    """The inverse of `event_to_json`.

    Raises:
        TraceError: an unknown event, or a field missing, unknown or of the wrong type.
    """
    if not isinstance(data, dict) or data.get("event") not in list(_EVENTS):  # may be unhashable
        raise _damaged("it has an event of no known kind")
    fields = {name: value for name, value in data.items() if name != "event"}
    event: Event = _parse(_EVENTS[data["event"]], fields, str(data["event"]))
    return event


def _parse_piece(value: Any) -> Piece:
    data, special = value
    return Piece(bytes.fromhex(data), _parse(bool, special, "special"))


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _parse(kind: Any, value: Any, where: str) -> Any:
    """Read a JSON value as the annotated type `kind`, strictly; the types above are the schema."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _parse_dataclass(kind, value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and isinstance(value, list):
        if arguments[-1] is Ellipsis:
            return tuple(_parse(arguments[0], item, where) for item in value)
        if len(arguments) == len(value):
            return tuple(_parse(k, item, where) for k, item in zip(arguments, value, strict=True))
    elif origin is Literal and value in arguments:
        return value
    elif origin in (typing.Union, types.UnionType):
        return None if value is None else _parse(arguments[0], value, where)
    elif origin is dict and isinstance(value, dict):
        return {key: _parse(arguments[1], item, where) for key, item in value.items()}
    elif kind is Any or (type(value) is kind and kind is not float):
        return value
    elif kind is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return float(value)
    raise _damaged(f"{where} is {str(value)[:40]!r}")


def _parse_dataclass(cls: type, value: Any, where: str) -> Any:
    hints, required = _schema(cls)
    if not isinstance(value, dict) or not required <= value.keys() <= hints.keys():
        raise _damaged(f"{where} lacks a field or has one too many")
    return cls(**{name: _parse(hints[name], item, f"{where}.{name}") for name, item in value.items()})


@functools.cache
def _schema(cls: type) -> tuple[dict[str, Any], frozenset[str]]:
    """The annotated type of each field, and the names of those that have no default."""
    required = (f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING)
    return typing.get_type_hints(cls), frozenset(required)


def _check_structure(trace: Trace) -> None:
    """Refuse what is well-typed but impossible, so that no reader above has to."""
    for reference in trace.references:
        ends = [*reference.starts, len(reference.text)]
        if reference.num_tokens < 0 or len(reference.starts) not in (0, reference.num_tokens):
            raise TraceError("The trace is damaged: a reference whose tokens do not add up.")
        if min(ends) < 0 or any(a > b for a, b in itertools.pairwise(ends)):
            raise TraceError("The trace is damaged: a reference whose tokens do not follow one another.")
    num_proposers = {lane: len(e.proposers) if (e := trace.started(lane)) else 0 for lane in typing.get_args(Lane)}
    for step in trace.events:
        if isinstance(step, Step) and (fault := _structure_fault(step, num_proposers[step.lane])):
            raise _damaged(f"step {step.index} {fault}")
    if missing := trace.ids_used() - set(trace.pieces):
        raise _damaged(f"no bytes for token id {min(missing)}")


def _structure_fault(step: Step, num_proposers: int) -> str:
    if max(len(step.nodes), len(step.sites), sum(len(site.trials) for site in step.sites)) > MAX_NODES:
        return f"has more than {MAX_NODES} nodes, sites or trials"
    for index, node in enumerate(step.nodes):
        parent_depth = step.nodes[node.parent].depth if 0 <= node.parent < index else 0
        if not ROOT <= node.parent < index or node.depth != parent_depth + 1:
            return "is not a tree"
    trials = [trial for site in step.sites for trial in site.trials]
    origins = [node.origin for node in step.nodes if node.origin]
    if any(origin.offset < 0 or origin.match_len < 1 for origin in origins):
        return "copies from nowhere"
    places = [site.node for site in step.sites] + [trial.node for trial in trials]
    if any(not ROOT <= place < len(step.nodes) for place in places):
        return "names a node it has not"
    proposers = [p for node in step.nodes for p in node.proposers] + [trial.proposer for trial in trials]
    if any(not 0 <= proposer < num_proposers for proposer in proposers):
        return "names a draft that the run has not"
    return ""
