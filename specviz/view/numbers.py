"""What each number on the page is: its name, definition, formula and how this run's values fill it.

Owns: the words. Must not know where values come from; `field` names a running number of the payload, those
with the prefix `plain_` are of the baseline. No two numbers share a name.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Format = Literal["percent", "one", "two", "times", "ms"]


@dataclass(frozen=True)
class Number:
    key: str
    field: str
    label: str
    unit: str
    format: Format
    what: str
    formula: str
    values: str


NUMBERS = (
    Number(
        "speedup", "race_speedup", "measured speedup", "×", "times",
        "How many times less a token costs with the draft than without. Both lanes are measured here, in turn, "
        "on the same machine; prompt passes and loading are not in it. Below 1 is a slow-down.",
        "baseline seconds per token ÷ seconds per token with draft",
        "({plain_decode_s} ÷ {plain_tokens}) ÷ ({decode_s} ÷ {tokens})",
    ),
    Number(
        "acceptance_rate", "acceptance_rate", "acceptance rate α", "%", "percent",
        "Of the drafted tokens the target tested, the share it kept. Tokens behind a rejection are never "
        "tested, so they do not count here.",
        "accepted ÷ tested",
        "{accepted} ÷ {tested}",
    ),
    Number(
        "rolling_rate", "rolling_rate", "α, last 16 passes", "%", "percent",
        "The acceptance rate over the last 16 passes only: how the draft is doing right now.",
        "accepted ÷ tested, over the last 16 passes",
        "{rolling_accepted} ÷ {rolling_tested}",
    ),
    Number(
        "step_rate", "step_rate", "α, this pass", "%", "percent",
        "The acceptance rate of the latest pass alone; n/a where nothing was tested in it.",
        "accepted ÷ tested, in this pass",
        "{step_accepted} ÷ {step_tested}",
    ),
    Number(
        "overlap", "overlap", "overlap α̂", "%", "percent",
        "How much of the target's and the draft's distributions coincide, averaged over tested tokens. It is "
        "the chance of acceptance before the draft's token is known, so it is steadier than α.",
        "mean of Σ min(p_target, q_draft)",
        "{overlap_sum} ÷ {tested}",
    ),
    Number(
        "draft_yield", "draft_yield", "draft yield", "%", "percent",
        "Of all drafted tokens, the share that ended up in the text. Lower than α whenever tokens are thrown "
        "away untested.",
        "accepted ÷ drafted",
        "{accepted} ÷ {drafted}",
    ),
    Number(
        "tokens_per_pass", "tokens_per_pass", "tokens per target pass τ", "", "two",
        "Tokens that one pass of the target gives on average, its own token included. Plain decoding is 1.00.",
        "emitted ÷ passes",
        "{tokens} ÷ {passes}",
    ),
    Number(
        "tokens_per_s", "tokens_per_s", "tokens per second, with draft", "", "one",
        "Decoding speed of the lane with the draft, on its own clock. The prompt pass is not in it.",
        "tokens ÷ seconds",
        "{tokens} ÷ {decode_s}",
    ),
    Number(
        "plain_tokens_per_s", "plain_tokens_per_s", "tokens per second, target alone", "", "one",
        "Decoding speed of the target without any draft: the baseline, run beside the other lane.",
        "tokens ÷ seconds",
        "{plain_tokens} ÷ {plain_decode_s}",
    ),
    Number(
        "prefill", "prefill_s", "prompt pass", "ms", "ms",
        "Time the target took to read the prompt, before the first token. It is the same work in both lanes "
        "and no part of the speeds.",
        "measured once for each lane",
        "{prefill_s} s",
    ),
    Number(
        "cost_ratio", "cost_ratio", "draft ÷ target pass, c", "", "two",
        "What a drafted token costs, in passes of the target alone. Guessing pays only while c is "
        "well below α.",
        "drafting seconds per drafted token ÷ seconds of a plain pass",
        "{draft_s} ÷ {drafted} ÷ {plain_pass_s}",
    ),
    Number(
        "verify_ratio", "verify_ratio", "verifying ÷ plain pass, v", "", "two",
        "What a pass that checks a draft costs, in passes of the target alone. The paper takes 1; here it is "
        "measured, and the plot of the theory takes it at other draft lengths from passes timed at load.",
        "seconds of a verifying pass ÷ seconds of a plain pass",
        "{verify_s} ÷ {passes} ÷ {plain_pass_s}",
    ),
)  # fmt: skip


def definitions() -> list[dict[str, Any]]:
    """All numbers as JSON values, in the order of the page."""
    return [asdict(number) for number in NUMBERS]
