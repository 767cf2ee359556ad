"""A trace's numbers, each defined once.

Owns: counts and the four rates (`counts`), the live tally and its courses for plots (`tally`), the summary
(`summary`), and the recheck of a trace from the file alone (`audit`). Must not know models, text,
tensors or any face. Unknown is None, never 0.
"""

from specviz.metrics.audit import audit
from specviz.metrics.counts import Counts, count_step
from specviz.metrics.summary import FirstDifference, Summary, summarize
from specviz.metrics.tally import Course, ProposerCounts, Tally, TimeSplit

__all__ = [
    "Counts",
    "Course",
    "FirstDifference",
    "ProposerCounts",
    "Summary",
    "Tally",
    "TimeSplit",
    "audit",
    "count_step",
    "summarize",
]
