"""Distillation: a target writes data, a small draft learns it, its agreement is measured.

Owns: `python -m specviz distill` without its face. Must not know the page or the command line.
"""

from specviz.distill.job import Report, Result, distill
from specviz.distill.settings import KINDS, DistillSettings

__all__ = ["KINDS", "DistillSettings", "Report", "Result", "distill"]
