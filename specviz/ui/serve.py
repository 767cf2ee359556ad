"""Starting the page: address, port, models offered, and what plays at first.

Owns: command-line options of `app.py`, the choice of a free port, and the GPU of a Space. Must not know
layout or decoding.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Sequence

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("TQDM_DISABLE", "1")  # bars of libraries; the page has its own

from specviz.config import CORPUS_SUFFIX
from specviz.ui import gpu, offer, recordings
from specviz.ui.keep import MAX_CHARS, MAX_CHARS_OPEN
from specviz.ui.page import build_app, launch_options

LOOPBACK = ("127.0.0.1", "localhost", "::1")
NUM_PORTS_TRIED = 50


def main(arguments: Sequence[str] | None = None, *, say: Callable[[str], None]) -> None:
    """Serve the page until interrupted; `say` is told where it is."""
    options = _parse(arguments)
    from specviz.run import prepare  # late: it imports torch

    any_name = options.any_model or options.host in LOOPBACK
    shown = offer.from_catalog(any_name=any_name, hub=options.hub, corpora=options.corpus)
    wrap = gpu.decorator()  # first: `spaces` wants to be imported before anything is on a GPU
    if gpu.is_zero():
        shown = gpu.load_at_start(shown)
    limit = MAX_CHARS if options.host in LOOPBACK else MAX_CHARS_OPEN
    app = build_app(prepare, offer=shown, recordings=recordings.load_all(), gpu=wrap, max_file_chars=limit)
    port = free_port(options.host, options.port)
    if port != options.port:
        say(f"Port {options.port} is taken; using {port}.")
    address = "localhost" if options.host in (*LOOPBACK, "0.0.0.0") else options.host
    say(f"specviz: http://{address}:{port}")
    app.launch(server_name=options.host, server_port=port, quiet=True, **launch_options())


def free_port(host: str, wanted: int) -> int:
    """`wanted`, or the next port on which nobody listens."""
    for port in range(wanted, min(wanted + NUM_PORTS_TRIED, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    return wanted


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="app.py", description="Serve the specviz page.")
    on_space = "SPACE_ID" in os.environ
    host = os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0" if on_space else "127.0.0.1")
    parser.add_argument("--host", default=host, help="address to listen on")
    port = int(os.environ.get("GRADIO_SERVER_PORT", "7860"))
    parser.add_argument("--port", type=int, default=port, help="port; the next free one where it is taken")
    parser.add_argument("--any-model", action="store_true", help="let visitors name models outside the catalog")
    parser.add_argument("--hub", action="store_true", default=on_space, help="offer models of the Hub too")
    parser.add_argument(
        "--corpus", metavar="FILE", action="append", default=[], type=_corpus,
        help="offer a corpus to copy from, made by `python -m specviz index`; may be given again",
    )  # fmt: skip
    return parser.parse_args(arguments)


def _corpus(place: str) -> str:
    if not place.endswith(CORPUS_SUFFIX) or not os.path.isfile(place):
        raise argparse.ArgumentTypeError(f"{place!r} is no corpus; make one with: python -m specviz index")
    return place
