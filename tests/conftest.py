"""Shared set-up: small models run best on one thread, and the toy models are built once."""

import gc
import os

import pytest
import torch
import toys

torch.set_num_threads(1)

# Where several workers run tests each has ports of its own: gradio would find the same free one for two of them.
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
os.environ.setdefault("GRADIO_SERVER_PORT", str(7860 + 100 * _worker))


@pytest.fixture(scope="module", autouse=True)
def collect_own_garbage():
    """Close what a module leaves to the collector while its own warning filters hold, not in a later test."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def tiny():
    return toys.tiny()


@pytest.fixture(scope="session")
def family(tiny):
    """Drafts for TINY by name: itself, itself plus noise (they agree partly), and another model altogether."""
    return {
        "self": tiny,
        "noisy .005": toys.noisy(tiny, 0.005),
        "noisy .01": toys.noisy(tiny, 0.01),
        "other": toys.other(),
    }


@pytest.fixture(scope="module")
def browser():
    """A Chromium of the test file's own."""
    from browser import FLAGS, chromium_path  # late: most files need neither gradio nor a browser

    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=chromium_path(), args=list(FLAGS))
        yield chromium
        chromium.close()
