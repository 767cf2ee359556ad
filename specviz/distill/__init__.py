"""Distillation: a target writes data, a small draft learns it, its agreement is measured.

Owns: `python -m specviz distill` without its face. Must not know the page or the command line.
"""

from specviz.distill.job import Result, distill
from specviz.distill.kinds import KINDS
from specviz.distill.report import Report
from specviz.distill.settings import DistillSettings

__all__ = ["KINDS", "DistillSettings", "Report", "Result", "distill"]
