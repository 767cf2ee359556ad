"""The command `models`: what can be named, and whether it is ready.

Owns: the list as a table and as JSON. Must not know where models come from: the catalog says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from specviz.cli.options import Options
from specviz.cli.summary import UNKNOWN
from specviz.models import catalog


def list_models(options: Options) -> int:
    """Print the catalog."""
    listed = {"targets": _rows(catalog.TARGETS), "drafts": _rows(catalog.DRAFTS)}
    print(json.dumps(listed, indent=1) if options.json else _table(listed))
    return 0


def _rows(entries: Sequence[catalog.Entry]) -> list[dict[str, Any]]:
    rows = []
    for entry in entries:
        ready, reason = catalog.is_ready(entry)
        params = catalog.num_params(entry)
        rows.append({"name": entry.name, "kind": entry.kind, "params": params, "ready": ready, "reason": reason})
    return rows


def _table(listed: dict[str, list[dict[str, Any]]]) -> str:
    rows = [row for kind in listed.values() for row in kind]
    width = max(len(row["name"]) for row in rows)
    lines = [f"{'name':<{width}}  kind    parameters  ready"]
    for row in rows:
        ready = "yes" if row["ready"] else f"no: {row['reason']}"
        lines.append(f"{row['name']:<{width}}  {row['kind']:<6}  {_params(row['params']):>10}  {ready}")
    return "\n".join(lines)


def _params(num: int | None) -> str:
    if num is None:
        return UNKNOWN
    return f"{num / 1e9:.1f} B" if num >= 1e9 else f"{num / 1e6:.1f} M"
