"""What a job asks of a kind of draft: build it, train it, measure it, keep it, describe it.

Owns: `Kind` and the values that pass between a kind and its job. Must not know any kind, or how data are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specviz.distill.boost import Earlier
from specviz.distill.measure import Agreement
from specviz.distill.report import Listener
from specviz.distill.store import Chat
from specviz.distill.train import Progress
from specviz.errors import ModelError

FURTHER = 0.3
"""Share of the full learning rate with which a trained draft is trained further."""


def other_sizes(name: str, kind: str) -> ModelError:
    """What to raise where weights do not fit."""
    return ModelError(
        f"--start {name} has other sizes than a {kind} of this target; name one that was made for it."
    )


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a draft learns from, and within which limits.

    `target` is the name that was given. `chats` are to be trained on, `held_out` never: they only tell how it
    goes. `seconds` and `max_steps` are the limits. `checkpoint` is a file of this job's alone: read it if it is
    there, so that a kill loses at most a minute. `scratch` is a folder for whatever else has to be kept until the
    draft is finished; the job deletes both then. `say` is told a `Report` of stage "train" now and then. `earlier`
    are drafts of the same target: learn what they miss.
    """

    target: str
    chats: Sequence[Chat]
    held_out: Sequence[Chat]
    seconds: float
    max_steps: int | None
    seed: int
    checkpoint: Path
    scratch: Path
    clock: Callable[[], float]
    say: Listener
    earlier: Earlier = field(default_factory=lambda: Earlier({}))


@dataclass(frozen=True)
class About:
    """A kind's part of the model card: `rows` of its table (name, value), a paragraph on how it was trained and
    one on how agreement was measured; `library` is what loads the draft.
    """

    rows: tuple[tuple[str, str], ...]
    training: str
    agreement: str
    library: str = "specviz"


class Kind(Protocol):
    """One draft in the making. The job calls the methods in this order, each once."""

    data_share: float
    """The largest share of the job's time that goes into writing data; training has the rest."""
    can_follow: bool
    """Whether it can learn what earlier drafts miss (`Lesson.earlier`)."""

    def build(self, target: Any, tokenizer: Any, seed: int) -> None:
        """Make the untrained draft; the same for the same seed.

        `target` is a causal model of transformers, still as it was loaded: before the data are written its linear
        layers may be packed and then only compute, so copy what is needed of its weights here.

        Raises:
            ModelError: this target's architecture does not allow this kind; one sentence that says what to choose.
        """

    def start_from(self, name: str) -> None:
        """Take over what a finished draft of this kind has learned, to train it further; right after `build`.

        Raises:
            ModelError: there is no such draft, its sizes are others, or this kind has nothing to train further.
        """

    def train(self, lesson: Lesson) -> Progress:
        """Learn within the lesson's limits."""

    def measure(self, held_out: Sequence[Chat]) -> Agreement:
        """On all held-out chats, with the weights rounded as they are stored."""

    def save(self, out: Path) -> None:
        """Write everything but the card into `out`, which exists.

        Raises:
            OSError: as the writing gives it; the job says it in a sentence.
        """

    def about(self) -> About:
        """What the card says of this kind; asked last."""
