"""Models: the catalog, where weights lie, and the one registry of what is loaded."""

from specviz.models.loading import (
    LoadedModel,
    check_same_tokens,
    load,
    load_blank,
    load_plain,
    wrap,
)
from specviz.models.skip import first_layers
from specviz.models.source import default_target

__all__ = [
    "LoadedModel",
    "check_same_tokens",
    "default_target",
    "first_layers",
    "load",
    "load_blank",
    "load_plain",
    "wrap",
]
