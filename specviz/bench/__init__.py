"""Measurements of this machine, for people to read; never a test that can fail on a busy one.

Owns: how things are timed side by side (`rounds`), what is measured (a module for each), the report (`report`).
Must not know the command line. Numbers are medians with ranges; what is compared runs in turn, in rotated
order, and ratios are taken pair by pair.
"""

from specviz.bench.report import choose, format_report, measure

__all__ = ["choose", "format_report", "measure"]
