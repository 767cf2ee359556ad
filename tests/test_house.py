"""The house: which room may import which, what each may take from outside, and habits of size.

A reader should see the algorithm in the folder listing; this keeps it so. A room may import lower floors and,
in its own row, what stands to its left. Rows of one floor do not know each other.
"""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "specviz"
MODEL_LIBRARIES = {"torch", "transformers", "numpy", "safetensors"}
ROWS = (
    (0, ("errors", "config", "trace"), set()),
    (1, ("sampling", "verify"), {"torch"}),
    (1, ("theory", "metrics"), {"numpy"}),
    (2, ("numerics", "models", "text", "runner", "drafts"), MODEL_LIBRARIES),
    (3, ("record", "decode", "run"), {"torch"}),
    (3, ("view",), set()),
    (4, ("prompts", "distill", "bench", "compare", "watch"), {*MODEL_LIBRARIES, "httpx"}),
    (5, ("ui", "cli"), set()),
)
MORE_LIBRARIES = {
    "models": {"gguf", "accelerate", "huggingface_hub"},
    "runner": {"httpx"},
    "drafts.retrieval.reader": {"pypdf"},
    "run": {"transformers"},  # for its version, which a trace records
    "view.figures": {"plotly"},
    "view.export": {"plotly"},
    "ui": {"gradio", "starlette", "prometheus_client", "spaces"},
    "ui.component": {"plotly"},  # whose script the page carries, since nothing comes from a CDN
}
PLACES = {
    room: (floor, row, column) for row, (floor, rooms, _) in enumerate(ROWS) for column, room in enumerate(rooms)
}
LIBRARIES = {room: libraries for _, rooms, libraries in ROWS for room in rooms}
ENTRY = {"", "__main__"}
MAX_FUNCTION_LINES = 60
FORBIDDEN_NAMES = {"utils", "helpers", "common"}
MAY_PRINT = {"cli", "ui", "__main__", "distill", "bench", "compare", "watch"}


def modules():
    """Dotted name below the package ("" for the package itself) and parsed source of every module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        yield name, path.name == "__init__.py", ast.parse(path.read_text(), str(path))


def imported_names(tree, module, is_package):
    """Full dotted names of everything imported anywhere in a module, inside functions too."""
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            base = statement.module or ""
            if statement.level:
                own = ["specviz", *filter(None, module.split("."))]
                kept = own[: len(own) - statement.level + is_package]
                base = ".".join([*kept, *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in statement.names)


def without_type_only(tree):
    """The tree less its `if TYPE_CHECKING:` blocks, which import nothing when the program runs."""

    class Cut(ast.NodeTransformer):
        def visit_If(self, statement):
            return None if ast.unparse(statement.test).endswith("TYPE_CHECKING") else statement

    return Cut().visit(tree)


def violations(module, tree, is_package=False):
    """Sentences about imports that the house does not allow to this module."""
    room = module.split(".")[0]
    if room in ENTRY:
        return
    if room not in PLACES:
        yield f"{module} is in no room of the house"
        return
    allowed = LIBRARIES[room] | MORE_LIBRARIES.get(room, set()) | MORE_LIBRARIES.get(module, set())
    for name in imported_names(tree, module, is_package):
        top, _, rest = name.partition(".")
        if top == "specviz":
            other = rest.split(".")[0]
            if other in PLACES and not may_know(room, other):
                yield f"{module} imports {name}"
        elif top not in sys.stdlib_module_names and top not in allowed:
            yield f"{module} imports {name}, which {room} may not"


def may_know(room, other):
    (floor, row, column), (other_floor, other_row, other_column) = PLACES[room], PLACES[other]
    return room == other or other_floor < floor or (row == other_row and other_column < column)


def test_every_import_keeps_to_the_table_of_rooms():
    assert [fault for name, package, tree in modules() for fault in violations(name, tree, package)] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("trace", "import torch"),
        ("trace", "def f():\n    import numpy"),
        ("config", "from specviz.trace import Trace"),
        ("errors", "from specviz import config"),
        ("metrics.audit", "from specviz.verify import verify"),
        ("metrics.tally", "import torch.nn"),
        ("theory", "from specviz.metrics import summarize"),
        ("verify", "from specviz.models import load"),
        ("sampling", "from specviz.verify import verify"),
        ("text", "from ..specviz.decode import race"),
        ("text", "from .decode import race"),
        ("drafts.merge", "from ..decode import race"),
        ("drafts.retrieval.source", "import pypdf"),
        ("models.loading", "from specviz.runner import Runner"),
        ("decode", "from specviz.run import Run"),
        ("decode", "from specviz.view.payload import Feed"),
        ("run", "import gradio"),
        ("view.payload", "from specviz.run import Run"),
        ("view.payload", "import plotly"),
        ("view.figures", "import torch"),
        ("ui.page", "import torch"),
        ("ui.page", "from specviz.cli import main"),
        ("cli", "import gradio"),
        ("shed", "import json"),
    ],
)
def test_an_import_against_the_table_is_seen(module, source):
    assert len(list(violations(module, ast.parse(source)))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("trace", "import json\nfrom specviz.errors import TraceError"),
        ("metrics", "from specviz.theory import expected_tokens"),
        ("decode", "import torch\nfrom specviz.drafts import DraftSource"),
        ("run", "import specviz\nfrom specviz import decode, models"),
        ("view.figures", "import plotly.graph_objects\nfrom . import payload"),
        ("ui.page", "import gradio as gr\nfrom specviz.run import prepare"),
        ("__main__", "from specviz.cli import main"),
    ],
)
def test_an_import_that_keeps_to_the_table_is_not(module, source):
    assert list(violations(module, ast.parse(source))) == []


def test_no_two_modules_import_each_other_even_by_a_detour():
    trees = {name: (package, without_type_only(tree)) for name, package, tree in modules()}
    known = {f"specviz.{name}": name for name in trees if name}
    graph = {
        name: {target for imported in imported_names(tree, name, package) if (target := resolve(imported, known))}
        for name, (package, tree) in trees.items()
    }
    assert find_cycle(graph) == []
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]


def resolve(imported, known):
    """The module that an import statement names: itself, or the module that holds the imported thing."""
    return known.get(imported) or known.get(imported.rpartition(".")[0])


def find_cycle(graph):
    """Modules of one cycle, the first repeated at the end; empty where there is none."""
    done = set()

    def visit(name, path):
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for other in sorted(graph.get(name, ())):
                if cycle := visit(other, [*path, name]):
                    return cycle
            done.add(name)
        return []

    return next((cycle for name in sorted(graph) if (cycle := visit(name, []))), [])


def functions(tree):
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def test_no_function_is_longer_than_a_screen():
    long = [
        f"{name}: {function.name}"
        for name, _, tree in modules()
        for function in functions(tree)
        if function.end_lineno - function.lineno >= MAX_FUNCTION_LINES
    ]
    assert long == []


def test_every_module_says_what_it_owns():
    assert [name for name, _, tree in modules() if not ast.get_docstring(tree)] == []


def test_no_room_is_a_drawer_for_odds_and_ends():
    assert [name for name, _, _ in modules() if FORBIDDEN_NAMES & set(name.split("."))] == []


def test_below_the_faces_nobody_prints_and_nobody_runs_a_models_own_code():
    faults = []
    for name, _, tree in modules():
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
            if getattr(call.func, "id", "") == "print" and name.split(".")[0] not in MAY_PRINT:
                faults.append(f"{name} prints")
            if any(k.arg == "trust_remote_code" and getattr(k.value, "value", True) for k in call.keywords):
                faults.append(f"{name} trusts remote code")
    assert faults == []


def test_no_function_rebinds_a_global():
    assert [name for name, _, tree in modules() for n in ast.walk(tree) if isinstance(n, ast.Global)] == []
