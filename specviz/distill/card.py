"""The model card: what a draft was trained on, at what cost, and how good it is, all measured.

Owns: the card's text. Must not know how anything was measured.
"""

import os
import platform
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from specviz.distill.job import Result
    from specviz.distill.kinds import About
    from specviz.distill.measure import Agreement
    from specviz.distill.settings import DistillSettings

UNKNOWN = "n/a"


@dataclass(frozen=True)
class Sizes:
    """Parameters of target and draft (tied tables once), and the draft's weights multiplied per token."""

    target: int
    draft: int
    forward: int

    @classmethod
    def of(cls, target: Any, draft: Any) -> "Sizes":
        """Counts before anything is packed."""
        table = draft.get_input_embeddings().weight.numel()
        tied = draft.config.tie_word_embeddings
        total = draft.num_parameters()
        return cls(target.num_parameters(), total, total if tied else total - table)

    def rows(self) -> tuple[tuple[str, str], ...]:
        """What the card's table says of them."""
        return (
            ("parameters", f"{self.draft:,} (1/{self.target / self.draft:.1f} of the target's {self.target:,})"),
            ("forward parameters", f"{self.forward:,} weights multiplied per token"),
            ("bytes", f"{self.draft * 2:,} (bfloat16)"),
        )


def hardware() -> str:
    """The machine as `lscpu` would name it, with the threads that computed."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{cpu_name()}, {torch.get_num_threads()} threads of {os.cpu_count()} CPUs"


def cpu_name() -> str:
    """The processor's own name where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def command(settings: "DistillSettings") -> str:
    """The line that makes this draft again."""
    words = ["python", "-m", "specviz", "distill", "--target", settings.target, "--out", settings.out.name]
    words += ["--kind", settings.kind, "--minutes", f"{settings.minutes:g}"]
    words += ["--data-tokens", str(settings.data_tokens), "--seed", str(settings.seed)]
    for name in settings.after:
        words += ["--after", name]
    if settings.start:
        words += ["--start", settings.start]
    if settings.prompts:
        words += ["--prompts", settings.prompts.name]
    return shlex.join(words)


def text(settings: "DistillSettings", result: "Result", about: "About") -> str:
    """The whole card, as Markdown."""
    prompts = f"; own prompts from {settings.prompts.name}" if settings.prompts else ""
    table = "\n".join(f"| {name} | {value} |" for name, value in _rows(settings, result, about, prompts))
    return f"""---
license: apache-2.0
library_name: {about.library}
pipeline_tag: text-generation
---

# {settings.out.name}: a draft for speculative decoding

Distilled from its target with specviz. Good for nothing but guessing that target's next tokens.

| | |
|---|---|
{table}

**Data.** The target wrote both sides of each chat: the user's turn at temperature 1 from a few opening
words, the answer at temperature 0 (half of the chats), 0.7 or 1, drawn among its 64 likeliest tokens.
**Training.** {about.training}
**Agreement.** {about.agreement}

Again: `{command(settings)}`
"""


def _rows(
    settings: "DistillSettings", result: "Result", about: "About", prompts: str
) -> Iterator[tuple[str, str]]:
    """The table's rows: (name, value)."""
    measured, progress = result.agreement, result.progress
    rate = f"{measured.rate:.3f}" if measured.num_positions else UNKNOWN
    yield "kind", f"{settings.kind}, for the target {settings.target}"
    yield from about.rows
    if settings.start:
        yield "started from", f"the draft {settings.start}"
    yield "data", f"{result.num_answer_tokens:,} answer tokens that the target wrote itself{prompts}"
    yield (
        "tokens seen",
        f"{progress.tokens_seen:,} in {progress.step:,} steps, {progress.epoch} whole epochs",
    )
    data_min, training_min = result.data_s / 60, progress.elapsed_s / 60
    yield "time", f"data {data_min:.0f} min for what was not there yet, training {training_min:.0f} min"
    yield "hardware", hardware()
    yield "agreement", f"{rate} of {measured.num_positions:,} positions in {measured.num_chats} held-out answers"
    yield "tokens per pass", f"{_replays(measured)}, replayed along those answers"


def _replays(measured: "Agreement") -> str:
    if not measured.num_positions:
        return UNKNOWN
    return ", ".join(f"{per_pass:.2f} with {shape}" for shape, per_pass in measured.replays)
