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

__all__ = ["LoadedModel", "check_same_tokens", "load", "load_blank", "load_plain", "load_tokenizer", "wrap"]
