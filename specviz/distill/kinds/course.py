"""What a listener hears while a network is trained.

Owns: the report of a step, and measuring agreement when it is due. Must not know any kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specviz.distill.kinds.kind import Lesson
from specviz.distill.measure import Agreement
from specviz.distill.report import Report
from specviz.distill.store import Chat
from specviz.distill.train import Progress, Trainer, TrainSettings

_MEASURED_CHATS = 24


def reporter(
    trainer: Trainer, settings: TrainSettings, lesson: Lesson, measure: Callable[[Sequence[Chat]], Agreement]
) -> Callable[[Progress], None]:
    """Tells the lesson's listener of each step; when one is due, agreement on a few chats joins the course."""

    def report(progress: Progress) -> None:
        if trainer.due and (found := measure(lesson.held_out[:_MEASURED_CHATS])).num_positions:
            progress.course.append((progress.tokens_seen, round(found.rate, 4)))
        latest = progress.course[-1][1] if progress.course else None
        left = max(0.0, settings.seconds - progress.elapsed_s)
        message = f"step {progress.step}, {progress.tokens_seen:,} tokens seen, loss {progress.loss:.3f}"
        lesson.say(Report("train", message, progress.fraction(settings), left, latest))

    return report
