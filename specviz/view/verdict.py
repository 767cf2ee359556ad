"""What a finished run comes to, in sentences and in the curve that theory draws for it.

Owns: the verdict (identical, first difference, or only the law promised), the closing note, and the theory
curve for the measured α, c and v. Must not know the browser, gradio or the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specviz.config import MAX_DRAFT_LEN, copies
from specviz.errors import SpecvizError
from specviz.metrics import Summary, Tally, summarize
from specviz.metrics.summary import FirstDifference, draft_target_ratio, verify_ratio
from specviz.theory import measured_verify_ratio, speedup_curve, speedup_factor
from specviz.trace import RunStarted

# Logits: how far apart the two best tokens may be for rounding to swap them. Measured on the embedded target
# without exact numerics, 120 positions of 5 prompts, blocks of 8 against single tokens: the gap moved by up to
# 0.375 in bfloat16, 0.0625 in float16 and 3.4e-5 in float32. Best logits reach 44 there, where neighbours in
# bfloat16 are 0.25 apart, so 1.0 is 4 steps. About 3 times what was seen, as deeper models round more often;
# float32 gets 30 times, still far below any gap that a wrong cache or mask leaves (whole logits).
TIE_GAPS = {"bfloat16": 1.0, "float16": 0.25, "float32": 1e-3}
WIDEST_TIE = max(TIE_GAPS.values())  # where the dtype is none of these
REPORT = "a fault of specviz, not of the draft. Please report it with the saved trace."
NO_CHAIN = "The formula is for a single chain of guesses; this run verified trees."
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
    found = verdict(summary, tally)
    found["text"] = " ".join(filter(None, (cut_short(tally), found["text"])))
    return {"speedup": summary.speedup, "verdict": found, "summary": numbers}


def cut_short(tally: Tally) -> str:
    """Which lanes were stopped or broken off, and after how many tokens; "" where none was."""
    lanes = ((tally.speculative, "with the draft"), (tally.baseline, "alone"))
    cut = [(lane, name) for lane, name in lanes if lane.finished and lane.is_cut_short]
    if not cut:
        return ""
    failed = any(lane.finished and lane.finished.reason == "error" for lane, _ in cut)
    how = "Broken off by an error" if failed else "Stopped"
    after = [f"{len(lane.token_ids)} tokens {name}" for lane, name in cut if lane.token_ids]
    return f"{how} after {' and '.join(after)}." if after else f"{how} before the first token."


def verdict(summary: Summary, tally: Tally) -> dict[str, str]:
    """Whether the two lanes say the same, and what may be expected of them: a kind and a sentence."""
    if tally.main is tally.baseline and summary.baseline_tokens:
        return {"kind": "unknown", "text": "There was no draft in this run: the target decoded alone."}
    if not summary.baseline_tokens or not summary.tokens:
        missing = "No token with the draft yet" if summary.baseline_tokens else "No baseline"
        return {"kind": "unknown", "text": f"{missing} to compare with."}
    temperature = tally.config.get("temperature")
    if not isinstance(temperature, int | float):
        return {"kind": "unknown", "text": "The trace names no temperature, so equal texts may not be promised."}
    if temperature != 0:
        text = "Texts may differ above temperature 0: both lanes draw from the same distribution, by chance."
        return {"kind": "law", "text": text}
    difference = summary.first_difference
    if difference is None:
        shorter = min(summary.tokens, summary.baseline_tokens)
        cut = tally.speculative.is_cut_short or tally.baseline.is_cut_short
        text = f"Identical to the baseline{' as far as both went' if cut else ''}: {shorter} of {shorter} tokens."
        return {"kind": "identical", "text": text}
    return _difference(difference, tally.main.started)


def _difference(difference: FirstDifference, started: RunStarted | None) -> dict[str, str]:
    """What a first difference at temperature 0 is: a tie that rounding decides, or a fault to report."""
    gap, where = difference.top2_gap, f"The lanes first differ at token {difference.index + 1}"
    apart = "" if gap is None else f", where the target's two best tokens are {gap:.3g} apart in logits"
    if started is not None and started.bit_exact:
        why = "At load, blocks and single tokens gave the same bits, so identical was promised"
        return {"kind": "fault", "text": f"{where}{apart}. {why}: {REPORT}"}
    if gap is None:
        return {"kind": "unknown", "text": f"{where}. How close the target's two best tokens were is not known."}
    dtype = started.dtype if started else ""
    if gap > TIE_GAPS.get(dtype, WIDEST_TIE):
        return {"kind": "fault", "text": f"{where}{apart}. Rounding does not reach that far: {REPORT}"}
    why = "A block of tokens and single tokens round differently here; both are the target's text."
    return {"kind": "tie", "text": f"{where}{apart}: a numerical tie. {why}"}


def closing_note(tally: Tally, *, live: bool = True) -> str:
    """Why the lane with the draft ended, as a sentence; who watches a recording has not stopped it."""
    finished = tally.speculative.finished or tally.baseline.finished
    if finished is None:
        return "The recording ends here."
    if finished.reason == "cancelled" and not any(lane.counts.passes for lane in tally.lanes.values()):
        return f"Stopped {'by you ' if live else ''}before the first token."
    if finished.reason == "cancelled" and not live:
        return "Stopped before its end."
    return finished.message or REASONS[finished.reason]


def theory_curve(tally: Tally) -> dict[str, Any] | None:
    """Speedup by draft length for the acceptance, c and v measured so far; None while one of them is unknown.

    `now` is the point of the length in use (for `auto`, the mean length drafted so far, rounded). A run that
    verified trees has no length, so like its predicted speedup the curve is not known: only `why_none` is given.
    """
    if not tally.only_chains:
        return {"why_none": NO_CHAIN}
    started, counts = tally.speculative.started, tally.speculative.counts
    alpha, cost_ratio = counts.acceptance_rate, draft_target_ratio(tally)
    if started is None or not started.pass_times or alpha is None or cost_ratio is None:
        return None
    try:
        verify, length = _verify_ratios(tally, started.pass_times), _length_in_use(tally)
        curve = speedup_curve(alpha, MAX_DRAFT_LEN, cost_ratio, verify)
        now = (length, speedup_factor(alpha, length, cost_ratio, verify))
    except SpecvizError:  # a trace from elsewhere may hold pass times that make no sense
        return None
    lengths, factors = zip(*curve, strict=True)
    return {"draft_len": lengths, "speedup": [round(s, 4) for s in factors], "now": [now[0], round(now[1], 4)]}


def _verify_ratios(tally: Tally, pass_times: Sequence[tuple[int, float]]) -> Callable[[float], float]:
    """v by draft length: as measured at load, scaled to pass through what this run's own passes took."""
    at_load, here, counts = measured_verify_ratio(pass_times), verify_ratio(tally), tally.speculative.counts
    usual = at_load(round(counts.drafted / counts.passes)) if counts.passes else 0.0
    scale = here / usual if here and usual else 1.0
    return lambda length: scale * at_load(length) if length else 1.0


def _length_in_use(tally: Tally) -> int:
    setting, drafts = tally.config.get("draft_len"), tally.config.get("drafts")
    copied = isinstance(drafts, list) and any(isinstance(name, str) and copies(name) for name in drafts)
    if isinstance(setting, int) and not isinstance(setting, bool) and not copied:
        return max(0, setting)
    counts = tally.speculative.counts
    return round(counts.drafted / counts.passes) if counts.passes else 0
