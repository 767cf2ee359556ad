"""The end of a run: its numbers under their right names, as a table and as the object of `--json`.

Owns: which numbers, in which words and order. Must not know how they follow from a trace: `metrics` says so.
"""

from __future__ import annotations

import unicodedata
from typing import Any

from specviz.cli.paint import one_line
from specviz.config import CASCADE, copies
from specviz.metrics import Summary, summarize
from specviz.metrics.summary import tally_trace
from specviz.text import Detokenizer
from specviz.trace import Lane, RunStarted, Trace
from specviz.view.verdict import closing_note, verdict

JSON_KEYS = (
    "target", "draft", "draft_len", "tree", "rule", "dtype", "device", "seed", "prompt_tokens", "tokens", "passes",
    "undrafted", "drafted", "tested", "accepted", "acceptance_rate", "overlap", "draft_yield", "tokens_per_pass",
    "prefill_s", "draft_s", "verify_s", "total_s", "tokens_per_s", "baseline_tokens_per_s", "speedup",
    "predicted_speedup", "draft_target_ratio", "verify_ratio", "stop_reason", "identical", "first_difference",
    "proposers", "copied", "text", "token_ids",
)  # fmt: skip
UNKNOWN = "n/a"
MAX_SOURCES_SHOWN = 6


def main_lane(trace: Trace) -> Lane:
    """The lane that is shown: the one with the draft, or the only one."""
    return "speculative" if trace.started("speculative") or trace.steps("speculative") else "baseline"


def json_object(trace: Trace) -> dict[str, Any]:
    """What `--json` prints; undefined numbers are None."""
    numbers = {**summarize(trace).to_json(), "text": plain_text(trace, main_lane(trace))}
    return {key: numbers[key] for key in JSON_KEYS}


def plain_text(trace: Trace, lane: Lane) -> str:
    """The text of a lane: whole characters, without special tokens."""
    reader = Detokenizer()
    return "".join(reader.push(trace.pieces[token_id]) for token_id in trace.token_ids(lane))


def header(started: RunStarted, config: dict[str, Any]) -> str:
    """One line: who decodes, with which settings."""
    blocks = "bit for bit" if started.bit_exact else "to rounding"
    parts = [
        f"target {started.target}",
        f"draft {' + '.join(started.proposers) or 'none'}",
        *(_drafting(config) if started.proposers else []),
        f"temperature {config.get('temperature')}",
        f"seed {started.seed}",
        f"{started.dtype} on {started.device}",
        f"a block equals single passes {blocks}",
    ]
    return one_line(" · ".join(parts))[:1000]


def _drafting(config: dict[str, Any]) -> list[str]:
    shape = [f"tree {config['tree']}"] if config.get("tree") else _lengths(config)
    return [*shape, "naive rule (for teaching)"] if config.get("rule") == "naive" else shape


def _lengths(config: dict[str, Any]) -> list[str]:
    """How much is drafted at once: γ for what draws its tokens, a length of its own for what copies them."""
    named = [f"draft length γ {config.get('draft_len')}"]
    names = config.get("drafts")
    copying = [isinstance(name, str) and copies(name) for name in names] if isinstance(names, list) else []
    only = all(copying) and not any(str(name).startswith(CASCADE) for name in names or [])
    length = [f"copy length {config.get('copy_len')}"] if any(copying) else []
    return length if only and length else [*named, *length]


def table(trace: Trace) -> str:
    """The summary for people, one number a line."""
    tally = tally_trace(trace)
    numbers = summarize(tally)
    rows = [*_rates(numbers), *_proposers(numbers), *_speeds(numbers), *_ends(numbers)]
    rows.append(("against the baseline", verdict(numbers, tally)["text"]))
    rows.append(("end", one_line(closing_note(tally))))
    width = max(_width(name) for name, _ in rows)
    return "\n".join(f"{name}{' ' * (width - _width(name))}  {value}" for name, value in rows)


def _width(text: str) -> int:
    """Columns of a terminal; a hat over a letter takes none."""
    return sum(not unicodedata.combining(char) for char in text)


def _rates(numbers: Summary) -> list[tuple[str, str]]:
    drafting = [
        (
            "acceptance rate α",
            f"{_percent(numbers.acceptance_rate)}  accepted ÷ tested: {numbers.accepted} of "
            f"{_count(numbers.tested)} drafted tokens that the target looked at",
        ),
        ("overlap α̂", f"{_percent(numbers.overlap)}  mean Σ min(p_target, q_draft) where tested"),
        (
            "draft yield",
            f"{_percent(numbers.draft_yield)}  accepted ÷ drafted: {numbers.accepted} of {numbers.drafted}",
        ),
    ]
    per_pass = (
        "tokens per target pass τ",
        f"{_plain(numbers.tokens_per_pass)}  {numbers.tokens} tokens in {numbers.passes} passes; "
        "plain decoding gives 1.00",
    )
    copied = [("copied", _copied(numbers))] if numbers.copied else []
    if numbers.undrafted:
        copied.append(
            ("no draft", f"in {numbers.undrafted} of {numbers.passes} passes: nobody had anything to say")
        )
    return [*(drafting if numbers.draft not in (None, "none") else []), *copied, per_pass]


def _copied(numbers: Summary) -> str:
    """Accepted of drafted copies, source by source."""
    parts = [f"{tally.accepted} of {tally.drafted} from {tally.source}" for tally in numbers.copied]
    more = [f"and {len(parts) - MAX_SOURCES_SHOWN:,} sources more"] if len(parts) > MAX_SOURCES_SHOWN else []
    return one_line(", ".join([*parts[:MAX_SOURCES_SHOWN], *more]))


def _proposers(numbers: Summary) -> list[tuple[str, str]]:
    """What each of several drafts gave; a token that two proposed is tested and accepted for whose trial came."""
    if len(numbers.proposers) < 2:
        return []
    return [
        (
            f"draft {place}, {one_line(one.name)[:200]}",
            f"{one.proposed} proposed, {one.tested} tested, {one.accepted} accepted, "
            f"{one.unique} of them proposed by no other draft",
        )
        for place, one in enumerate(numbers.proposers, start=1)
    ]


def _speeds(numbers: Summary) -> list[tuple[str, str]]:
    ours = ("tokens per second", _plain(numbers.tokens_per_s, 1))
    if numbers.draft in (None, "none"):
        return [ours]
    if numbers.speedup is None:
        return [ours, ("speedup", f"{UNKNOWN}  nothing to compare with")]
    slower = "  a slow-down" if numbers.speedup < 1 else ""
    formula = (
        f"from α, draft ÷ target {_plain(numbers.draft_target_ratio, 3)}, "
        f"verify ÷ plain pass {_plain(numbers.verify_ratio)}"
    )
    predicted = f"{_times(numbers.predicted_speedup)}  {formula}"
    known = (numbers.acceptance_rate, numbers.draft_target_ratio, numbers.verify_ratio)
    if numbers.predicted_speedup is None and None not in known:
        predicted = f"{UNKNOWN}  the formula is for a single chain of guesses; {formula.removeprefix('from α, ')}"
    return [
        ours,
        ("baseline tokens per second", _plain(numbers.baseline_tokens_per_s, 1)),
        ("speedup, measured", f"{_times(numbers.speedup)}{slower}"),
        ("speedup, predicted", predicted),
    ]


def _ends(numbers: Summary) -> list[tuple[str, str]]:
    rest_s = max(0.0, numbers.total_s - numbers.draft_s - numbers.verify_s)
    split = f"draft {numbers.draft_s:.2f} s, verify {numbers.verify_s:.2f} s, rest {rest_s:.2f} s"
    prefill = UNKNOWN if numbers.prefill_s is None else f"{numbers.prefill_s:.2f} s"
    return [("decoding", f"{numbers.total_s:.2f} s: {split}"), ("prompt pass, apart", prefill)]


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"


def _plain(value: float | None, digits: int = 2) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def _times(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}×"


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)
