"""A real Chromium over a scripted engine behind the real page: what the browser tests share."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager

import pytest
from fake_engine import FakeEngine

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

PATIENCE_MS = 60_000  # only catches hangs
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium_path() -> str:
    """Where Chromium is; without one the test is skipped, on CI it fails."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium here; `make test` installs it")
    return str(found)


class Served:
    """The page over a scripted engine, on a port of its own."""

    def __init__(self, engine: FakeEngine, **more: object) -> None:
        from specviz.ui.page import build_app, launch_options

        self.engine = engine
        self.app = build_app(engine.prepare, **more)  # type: ignore[arg-type]
        _, self.url, _ = self.app.launch(
            server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, **launch_options()
        )

    def close(self) -> None:
        self.app.close()


@contextmanager
def serving(engine: FakeEngine | None = None, **more: object):
    served = Served(engine or FakeEngine(), **more)
    try:
        yield served
    finally:
        served.close()


class Visit:
    """One visitor: a page in a context of its own, and all that must never happen in it.

    It asks for reduced motion, so that the recorded run stands at its end and leaves the CPU to the test; a test
    that watches it play says `reduced_motion="no-preference"`.
    """

    def __init__(self, browser, url: str, **context: object) -> None:
        wanted = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | context
        self.context = browser.new_context(**wanted)
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        self.url = url
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", self._dialog)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _dialog(self, dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def open(self, path: str = "") -> Visit:
        self.page.goto(self.url.rstrip("/") + "/" + path)
        self.page.wait_for_selector(".sv-lane")
        return self

    def ask(self, expression: str, argument: object = None):
        """Evaluate over `v`, the view of the race."""
        return self.page.evaluate(
            "([code, argument]) => { const v = document.querySelector('.sv').svView; "
            "return (0, eval)(`(v, argument) => (${code})`)(v, argument); }",
            [expression, argument],
        )

    def until(self, expression: str) -> None:
        """Wait until this holds of `v`."""
        self.page.wait_for_function(
            f"() => {{ const v = document.querySelector('.sv').svView; return {expression}; }}"
        )

    def run(self, **values: object) -> Visit:
        """Set controls by their label, then press Run."""
        for label, value in values.items():
            self.page.get_by_label(label.replace("_", " "), exact=True).first.fill(str(value))
        before = self.ask("v.run?.id ?? null")
        self.page.click("#run")
        self.page.wait_for_function(
            "(id) => { const run = document.querySelector('.sv').svView.run; return run && run.id !== id; }",
            arg=before,
        )
        return self

    def finish(self) -> Visit:
        self.until("!v.run.live")
        return self

    def outside(self) -> list[str]:
        """Requests to any other host."""
        here = self.url.rstrip("/")
        return [url for url in self.requests if not url.startswith((here, "data:", "blob:"))]

    def close(self) -> None:
        self.context.close()
