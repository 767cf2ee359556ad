"""Retrieval: drafts that are copied from references, a corpus, the prompt or the own output.

    reader ─► documents ─► library (tokens) ─► fixed (suffix_array) ─┐
    prompt and output ───────────────────────► live ─────────────────┴► match ─► source (copy_length) ─► TokenTree

Owns: everything between a file and a tree of copies that carry where they came from. Must not know the rule.
"""

from specviz.drafts.retrieval.source import Retrieval, prompt_lookup

__all__ = ["Retrieval", "prompt_lookup"]
