"""Where copied tokens came from, and which parts of each source were used.

Owns: `Copies` and `copies_by_source`. Must not know texts or tokenizers: offsets are tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specviz.trace import Step, Trace


@dataclass(frozen=True, slots=True)
class SourceTally:
    """Copies from one source. `used` are the stretches [from, to) of it that were accepted, in tokens."""

    source: str
    drafted: int
    accepted: int
    used: tuple[tuple[int, int], ...]


class Copies:
    """What was copied so far, step by step.

    A node counts once, for the source that its origin names; tokens of a model count for none.
    """

    def __init__(self) -> None:
        self._drafted: dict[str, int] = {}
        self._accepted: dict[str, list[int]] = {}

    def add(self, step: Step) -> None:
        for node in step.nodes:
            if node.origin is not None:
                source = node.origin.source
                self._drafted[source] = self._drafted.get(source, 0) + 1
                self._accepted.setdefault(source, []).extend([node.origin.offset] * (node.verdict == "accepted"))

    def by_source(self) -> tuple[SourceTally, ...]:
        """A tally for each source that was copied from, those with most accepted tokens first."""
        accepted = self._accepted
        tallies = [SourceTally(s, n, len(accepted[s]), stretches(accepted[s])) for s, n in self._drafted.items()]
        return tuple(sorted(tallies, key=lambda tally: -tally.accepted))


def copies_by_source(trace: Trace) -> tuple[SourceTally, ...]:
    """The same for a whole trace."""
    copies = Copies()
    for step in trace.steps("speculative"):
        copies.add(step)
    return copies.by_source()


def stretches(offsets: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Offsets joined to [from, to) where they follow one another."""
    joined: list[tuple[int, int]] = []
    for offset in sorted(set(offsets)):
        if joined and joined[-1][1] == offset:
            joined[-1] = (joined[-1][0], offset + 1)
        else:
            joined.append((offset, offset + 1))
    return tuple(joined)
