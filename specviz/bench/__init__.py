"""Measurements of this machine, for people to read; never a test that can fail on a busy one.

Owns: how things are timed side by side (`rounds`), what is measured (a module for each), the report (`report`).
Must not know the command line. Numbers are medians with ranges; what is compared runs in turn, in rotated
order, and ratios are taken pair by pair.
"""

from specviz.bench.bench import Bench
from specviz.bench.categories import measure_categories
from specviz.bench.citing import format_retrieval, measure_retrieval
from specviz.bench.report import choose, format_report, measure
from specviz.bench.tables import format_categories
from specviz.bench.tree_tables import format_trees
from specviz.bench.trees import measure_trees

__all__ = [
    "Bench",
    "choose",
    "format_categories",
    "format_report",
    "format_retrieval",
    "format_trees",
    "measure",
    "measure_categories",
    "measure_retrieval",
    "measure_trees",
]
