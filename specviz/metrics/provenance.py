"""Where copied tokens came from, and which parts of each source were used.

Owns: `copies_by_source`. Must not know texts or tokenizers: offsets are tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specviz.trace import Trace


@dataclass(frozen=True, slots=True)
class SourceTally:
    """Copies from one source. `used` are the stretches [from, to) of it that were accepted, in tokens."""

    source: str
    drafted: int
    accepted: int
    used: tuple[tuple[int, int], ...]


def copies_by_source(trace: Trace) -> list[SourceTally]:
    """A tally for each source that was copied from, those with most accepted tokens first.

    A node counts once, for the source that its origin names; tokens of a model count for none.
    """
    drafted: dict[str, int] = {}
    accepted: dict[str, list[int]] = {}
    for step in trace.steps("speculative"):
        for node in step.nodes:
            if node.origin is not None:
                source = node.origin.source
                drafted[source] = drafted.get(source, 0) + 1
                accepted.setdefault(source, []).extend([node.origin.offset] * (node.verdict == "accepted"))
    tallies = [SourceTally(s, num, len(accepted[s]), stretches(accepted[s])) for s, num in drafted.items()]
    return sorted(tallies, key=lambda tally: -tally.accepted)


def stretches(offsets: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Offsets joined to [from, to) where they follow one another."""
    joined: list[tuple[int, int]] = []
    for offset in sorted(set(offsets)):
        if joined and joined[-1][1] == offset:
            joined[-1] = (joined[-1][0], offset + 1)
        else:
            joined.append((offset, offset + 1))
    return tuple(joined)
