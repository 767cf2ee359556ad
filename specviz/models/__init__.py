"""Models: the catalog, where weights lie, and the one registry of what is loaded."""

from specviz.models.loading import (
    LoadedModel,
    check_same_tokens,
    load,
    load_blank,
    load_plain,
    load_tokenizer,
    wrap,
)
from specviz.models.skip import first_layers
from specviz.models.source import default_target, has_gpu

__all__ = [
    "LoadedModel",
    "check_same_tokens",
    "default_target",
    "first_layers",
    "has_gpu",
    "load",
    "load_blank",
    "load_plain",
    "load_tokenizer",
    "wrap",
]
