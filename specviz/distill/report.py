"""How far a job is, as values that a face can show.

Owns: `Report`. Must not know who shows it or what the job does.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """How far a job is. `fraction` is of the whole stage; `agreement` is measured now and then."""

    stage: str
    message: str
    fraction: float | None = None
    left_s: float | None = None
    agreement: float | None = None


Listener = Callable[[Report], None]
