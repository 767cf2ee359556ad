"""Running a model: the pass over a token tree, its cache, and what it costs here."""

from specviz.runner.calibrate import calibrate
from specviz.runner.eager import Pass, Runner

__all__ = ["Pass", "Runner", "calibrate"]
