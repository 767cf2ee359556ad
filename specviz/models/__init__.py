"""Models: the catalog, where weights lie, and the one registry of what is loaded."""

from specviz.models.loading import LoadedModel, check_same_tokens, first_layers, load, load_plain, wrap

__all__ = ["LoadedModel", "check_same_tokens", "first_layers", "load", "load_plain", "wrap"]
