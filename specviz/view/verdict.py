"""What a finished run comes to, in sentences and in the curve that theory draws for it.

Owns: the verdict (identical, first difference, or only the law promised), the closing note, and the theory
curve for the measured α, c and v. Must not know the browser, gradio or the engine.
"""

from __future__ import annotations

from typing import Any

from specviz.config import copies
from specviz.errors import SpecvizError
from specviz.metrics import Summary, Tally, summarize
from specviz.metrics.summary import draft_target_ratio
from specviz.theory import measured_verify_ratio, speedup_curve, speedup_factor

CURVE_LIMIT = 16
REASONS = {
    "eos": "The model ended its answer.",
    "stop": "A stop string came up.",
    "length": "The maximum of new tokens was reached.",
    "context": "The model's context is full.",
    "cancelled": "Stopped by you; everything so far is kept.",
    "error": "The run ended with an error.",
}


def ending(tally: Tally) -> dict[str, Any]:
    """The part `end` of a run's last delta: speedup, verdict, and the summary's numbers."""
    summary = summarize(tally)
    numbers = summary.to_json()
    del numbers["token_ids"]
    return {"speedup": summary.speedup, "verdict": verdict(summary, tally), "summary": numbers}


def verdict(summary: Summary, tally: Tally) -> dict[str, str]:
    """Whether the two lanes say the same, and what may be expected of them: a kind and a sentence."""
    if not summary.baseline_tokens or not summary.tokens:
        return {"kind": "unknown", "text": "No baseline to compare with."}
    if tally.config.get("temperature") != 0:
        text = "Texts may differ above temperature 0: both lanes draw from the same distribution, by chance."
        return {"kind": "law", "text": text}
    difference = summary.first_difference
    if difference is None:
        shorter = min(summary.tokens, summary.baseline_tokens)
        cut = tally.speculative.is_cut_short or tally.baseline.is_cut_short
        text = f"Identical to the baseline{' as far as both went' if cut else ''}: {shorter} of {shorter} tokens."
        return {"kind": "identical", "text": text}
    return {"kind": "tie", "text": _difference(difference.index, difference.top2_gap)}


def _difference(index: int, gap: float | None) -> str:
    where = f"The lanes first differ at token {index + 1}"
    if gap is None:
        return f"{where}. The gap between the target's two best tokens there was not kept."
    return (
        f"{where}, where the target's two best tokens are {gap:.3g} apart in logits: a numerical tie. A block of "
        "tokens and single tokens round differently here; both are the target's text."
    )


def closing_note(tally: Tally) -> str:
    """Why the lane with the draft ended, as a sentence."""
    finished = tally.speculative.finished or tally.baseline.finished
    if finished is None:
        return "The recording ends here."
    return finished.message or REASONS[finished.reason]


def theory_curve(tally: Tally) -> dict[str, Any] | None:
    """Speedup by draft length for the α, c and v measured so far; None while one of them is unknown.

    `now` is the point of the draft length in use (for `auto`, the mean length drafted so far, rounded).
    """
    started, counts = tally.speculative.started, tally.speculative.counts
    alpha, cost_ratio = counts.acceptance_rate, draft_target_ratio(tally)
    if started is None or alpha is None or cost_ratio is None or not started.pass_times:
        return None
    try:
        verify = measured_verify_ratio(started.pass_times)
        curve = speedup_curve(alpha, CURVE_LIMIT, cost_ratio, verify)
        length = _length_in_use(tally)
        now = [length, round(speedup_factor(alpha, length, cost_ratio, verify), 4)]
    except SpecvizError:  # a trace from elsewhere may hold pass times that make no sense
        return None
    return {"draft_len": [n for n, _ in curve], "speedup": [round(s, 4) for _, s in curve], "now": now}


def _length_in_use(tally: Tally) -> int:
    setting, drafts = tally.config.get("draft_len"), tally.config.get("drafts")
    copied = isinstance(drafts, list) and any(isinstance(name, str) and copies(name) for name in drafts)
    if isinstance(setting, int) and not isinstance(setting, bool) and not copied:
        return max(0, setting)
    counts = tally.speculative.counts
    return round(counts.drafted / counts.passes) if counts.passes else 0
