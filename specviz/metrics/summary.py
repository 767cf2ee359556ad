"""One run in one table: the numbers that every face shows and `--json` prints.

Owns: `Summary` and how its numbers follow from a tally. Must not know text or how numbers are shown.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from specviz.config import DraftLen
from specviz.metrics.counts import ratio
from specviz.metrics.provenance import SourceTally
from specviz.metrics.tally import LaneTally, ProposerCounts, Tally
from specviz.theory import expected_tokens
from specviz.trace import RunStarted, StopReason, Trace


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where the lanes' ids first differ: the new token's index, and how close the target's two best were there.

    `top2_gap` is in logits, of the baseline where it decided that token; None where no lane kept it.
    """

    index: int
    top2_gap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The numbers of a run. None: undefined or unknown.

    Numbers without a prefix are of the speculative lane, or of the baseline where it runs alone (`draft` "none").
    Seconds are of the lane's own clock; `total_s` is decoding, the prompt pass (`prefill_s`) apart, and both
    rates are over it. `draft` joins the sources' names by " + " and is "none" where there are none.

    `speedup`: baseline seconds per token ÷ ours, each lane over what it has done; below 1 is a slow-down.
    `draft_target_ratio` c: drafting seconds per drafted node ÷ seconds of a plain target pass.
    `verify_ratio` v: mean seconds of our target passes ÷ seconds of a plain one. The plain pass is the
    baseline's mean, without a baseline the block of one measured at load.
    `predicted_speedup`: what i.i.d. acceptance promises with the measured α, c and v (`predict_speedup`).
    `identical`: whether both lanes gave the same ids; only at temperature 0, where lossless means equal.
    Where a lane was cut short, the comparison goes as far as the shorter one.
    `copied`: for each source that was copied from, what was drafted and accepted from it.
    """

    target: str | None
    draft: str | None
    draft_len: DraftLen | None
    tree: str | None
    rule: str | None
    dtype: str | None
    device: str | None
    seed: int | None
    prompt_tokens: int | None
    tokens: int
    passes: int
    undrafted: int | None
    drafted: int
    tested: int | None
    accepted: int
    acceptance_rate: float | None
    overlap: float | None
    draft_yield: float | None
    tokens_per_pass: float | None
    prefill_s: float | None
    draft_s: float
    verify_s: float
    total_s: float
    tokens_per_s: float | None
    baseline_tokens_per_s: float | None
    speedup: float | None
    predicted_speedup: float | None
    draft_target_ratio: float | None
    verify_ratio: float | None
    stop_reason: StopReason | None
    identical: bool | None
    first_difference: FirstDifference | None
    proposers: tuple[ProposerCounts, ...]
    copied: tuple[SourceTally, ...]
    token_ids: tuple[int, ...]
    baseline_tokens: int
    baseline_total_s: float
    baseline_prefill_s: float | None
    baseline_stop_reason: StopReason | None

    def to_json(self) -> dict[str, Any]:
        """All fields as plain JSON values, undefined ones null. Text is added by a face, which has the pieces."""
        numbers = dataclasses.asdict(self)
        return {**numbers, "token_ids": list(self.token_ids), "proposers": list(numbers["proposers"])}


def summarize(run: Trace | Tally) -> Summary:
    """The numbers of a recorded trace, or of a run so far."""
    tally = run if isinstance(run, Tally) else tally_trace(run)
    ours, plain = tally.main, tally.baseline
    counts, first = ours.counts, _first_difference(tally)
    return Summary(
        **_facts(ours.started),
        draft_len=_draft_len(tally.config.get("draft_len")) if ours is not plain else None,
        tree=_word(tally.config.get("tree")) if ours is not plain else None,
        rule=_word(tally.config.get("rule")) if ours is not plain else None,
        tokens=counts.emitted,
        passes=counts.passes,
        undrafted=counts.undrafted,
        drafted=counts.drafted,
        tested=counts.tested,
        accepted=counts.accepted,
        acceptance_rate=counts.acceptance_rate,
        overlap=counts.overlap,
        draft_yield=counts.draft_yield,
        tokens_per_pass=counts.tokens_per_pass,
        draft_s=ours.draft_s,
        verify_s=ours.verify_s,
        total_s=ours.clock_s,
        tokens_per_s=ours.tokens_per_s,
        baseline_tokens_per_s=plain.tokens_per_s,
        speedup=tally.current_speedup(),
        predicted_speedup=predict_speedup(tally),
        draft_target_ratio=draft_target_ratio(tally),
        verify_ratio=verify_ratio(tally),
        stop_reason=ours.finished.reason if ours.finished else None,
        identical=(first is None) if _comparable(tally) else None,
        first_difference=first,
        proposers=tuple(dataclasses.replace(counts) for counts in tally.proposers),
        copied=tally.copies.by_source(),
        token_ids=tuple(ours.token_ids),
        baseline_tokens=plain.counts.emitted,
        baseline_total_s=plain.clock_s,
        baseline_prefill_s=plain.started.prefill_s if plain.started else None,
        baseline_stop_reason=plain.finished.reason if plain.finished else None,
    )


def tally_trace(trace: Trace) -> Tally:
    """A recorded trace as a finished tally, courses included."""
    tally = Tally(trace.config)
    for event in trace.events:
        tally.add(event)
    return tally


def draft_target_ratio(tally: Tally) -> float | None:
    """c: drafting seconds per drafted node ÷ seconds of a plain target pass."""
    ours = tally.main
    return ratio(ratio(ours.draft_s, ours.counts.drafted), _plain_pass_s(tally))


def verify_ratio(tally: Tally) -> float | None:
    """v: mean seconds of a verifying pass ÷ seconds of a plain one; None where nothing was verified."""
    ours = tally.main
    if ours is tally.baseline:
        return None
    return ratio(ratio(ours.verify_s, ours.counts.passes), _plain_pass_s(tally))


def predict_speedup(tally: Tally) -> float | None:
    """The wall-clock factor of i.i.d. acceptance with measured α, c, v: Σ E(γ) ÷ Σ (γc + v) over the passes.

    γ is what each pass really drafted, so lengths that vary (`auto`, lookup, the last pass before the end)
    are counted as they were; with one length throughout this is Theorem 3.8 of 2211.17192 with v in the
    place of its 1. Sampling and bookkeeping are not in it. None for trees, and without α, c or v.
    """
    alpha = tally.main.counts.acceptance_rate
    c, v = draft_target_ratio(tally), verify_ratio(tally)
    if not tally.only_chains or alpha is None or c is None or v is None:
        return None
    lengths = tally.draft_lengths.items()
    tokens = sum(num * expected_tokens(alpha, length) for length, num in lengths)
    return ratio(tokens, sum(num * (length * c + v) for length, num in lengths))


def _plain_pass_s(tally: Tally) -> float | None:
    plain = tally.baseline
    if plain.counts.passes:
        return ratio(plain.verify_s, plain.counts.passes)
    started = tally.main.started
    return dict(started.pass_times).get(1) if started else None


def _facts(started: RunStarted | None) -> dict[str, Any]:
    if started is None:
        names = ("target", "draft", "dtype", "device", "seed", "prompt_tokens", "prefill_s")
        return dict.fromkeys(names)
    return {
        "target": started.target,
        "draft": " + ".join(started.proposers) or "none",
        "dtype": started.dtype,
        "device": started.device,
        "seed": started.seed,
        "prompt_tokens": started.num_prompt_tokens,
        "prefill_s": started.prefill_s,
    }


def _draft_len(setting: object) -> DraftLen | None:
    """The setting of a trace's config, which may come from anywhere; None where it is none."""
    if setting == "auto":
        return "auto"
    return setting if isinstance(setting, int) and not isinstance(setting, bool) else None


def _word(setting: object) -> str | None:
    """A setting of a trace's config that is a text; None where it is empty or none."""
    return setting if isinstance(setting, str) and setting else None


def _comparable(tally: Tally) -> bool:
    """Whether equal ids are promised, and both lanes have a token to compare."""
    both_spoke = bool(tally.speculative.token_ids and tally.baseline.token_ids)
    return both_spoke and tally.config.get("temperature") == 0


def _first_difference(tally: Tally) -> FirstDifference | None:
    if not _comparable(tally):
        return None
    ours, plain = tally.speculative, tally.baseline
    end = _compared_length(ours, plain)
    if tally.num_equal >= end:
        return None
    gaps = plain.top2_gaps if tally.num_equal < len(plain.top2_gaps) else ours.top2_gaps
    return FirstDifference(tally.num_equal, gaps[tally.num_equal])


def _compared_length(ours: LaneTally, plain: LaneTally) -> int:
    """All tokens count where both lanes ended by themselves, so a missing tail is a difference."""
    lengths = (len(ours.token_ids), len(plain.token_ids))
    return min(lengths) if ours.is_cut_short or plain.is_cut_short else max(lengths)
