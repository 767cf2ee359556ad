"""Start the page: `python app.py`, or a Hugging Face Space."""

import contextlib
from functools import partial

with contextlib.suppress(ImportError):
    import spaces  # noqa: F401 - on a Space it must come before torch

from specviz.ui.serve import main

if __name__ == "__main__":
    main(say=partial(print, flush=True))
