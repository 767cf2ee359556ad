"""The page over the embedded target: the textbook cases, the untrained draft, and all of it with no network."""

import os
import socket

import pytest
from browser import Visit

from specviz.config import RunConfig
from specviz.metrics import audit, summarize
from specviz.models import catalog, hub, loading
from specviz.run import prepare
from specviz.ui import presets
from specviz.ui.offer import from_catalog
from specviz.ui.page import build_app, launch_options
from specviz.ui.recordings import load_all
from specviz.ui.settings import DEFAULTS, to_config

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # sockets of servers being closed
HERE = ("127.0.0.1", "localhost", "::1", "0.0.0.0", None)


@pytest.fixture(scope="module", autouse=True)
def _embedded_target():
    ready, reason = catalog.is_ready(catalog.find(catalog.EMBEDDED))
    if not ready:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def decoded(config):
    run = prepare(config)
    for _ in run.events():
        pass
    assert audit(run.trace) == []
    return run.trace, summarize(run.trace)


def textbook():
    """(settings of the page, name) of its textbook presets."""
    shown = from_catalog()
    first = {**DEFAULTS, "target": shown.target, "draft": shown.draft}
    return {item["name"]: {**first, **item["settings"]} for item in presets.presets(shown) if item.get("case")}


def test_the_textbook_cases_show_all_some_and_no_tokens_accepted():
    cases = textbook()
    assert list(cases) == ["All accepted", "Some accepted", "None accepted"]
    (everything, most), (_, some), (nothing, least) = (decoded(to_config(values)) for values in cases.values())
    draft_len = cases["All accepted"]["draft_len"]
    assert most.tokens_per_pass == draft_len + 1
    assert most.acceptance_rate == most.draft_yield == 1.0
    assert 1.0 < some.tokens_per_pass < draft_len + 1
    assert least.tokens_per_pass == 1.0
    assert least.acceptance_rate == 0.0
    if everything.started("speculative").bit_exact:
        assert most.identical is some.identical is least.identical is True
        assert everything.token_ids("speculative") == nothing.token_ids("speculative")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("prompt", ["List five fruits, one per line.", "¿Cuál es la capital de España?"])
def test_a_draft_that_knows_nothing_changes_nothing_but_the_speed(prompt, temperature):
    settings = {"prompt": prompt, "temperature": temperature, "max_new_tokens": 48, "seed": 1, "draft_len": 3}
    trace, numbers = decoded(RunConfig(target=catalog.EMBEDDED, drafts=(catalog.BLANK,), **settings))
    assert numbers.tokens_per_pass == pytest.approx(1.0, abs=0.15)
    assert numbers.identical is (True if temperature == 0 else None)
    assert trace.started("speculative").proposers == (catalog.BLANK,)


@pytest.fixture
def attempts(monkeypatch):
    """Everything that asks for another host, which fails at once; no model is loaded before."""
    asked = []
    connect, find = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in HERE:
            asked.append(address)
            raise OSError(101, "Network is unreachable")
        return connect(self, address)

    def guarded_find(host, *more, **settings):
        if host not in HERE:
            asked.append(host)
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return find(host, *more, **settings)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_find)
    monkeypatch.setattr(loading, "_REGISTRY", {})
    return asked


@pytest.mark.browser
def test_case_61_without_a_network_the_page_is_whole_and_every_draft_runs(browser, attempts, monkeypatch):
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    shown = from_catalog(any_name=True)
    app = build_app(prepare, offer=shown, recordings=load_all())
    _, url, _ = app.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, **launch_options())
    guest = Visit(browser, url).open()
    guest.until("v.plots.plotly !== null && v.plots.plots.every((plot) => plot.box.hidden || plot.box.data)")
    guest.page.get_by_label("number input for New tokens, at most").fill("12")
    assert len(shown.drafts) >= 5
    for label, name in shown.drafts:
        if "references" in name:
            continue  # has nothing to copy from until a visitor brings texts
        guest.page.get_by_label(label, exact=True).check()
        guest.run(Prompt="Name three rivers.").finish()
        assert guest.ask("v.run.phase") == "done", label
        assert guest.ask("v.run.steps.baseline.at(-1).row.tokens") == 12
    assert attempts == []
    guest.page.get_by_text("More settings").click()
    for offline, word in ((True, "cannot be loaded offline"), (False, "does not answer")):
        monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", offline)
        guest.page.get_by_label("Another draft").fill("nobody/nothing")
        guest.page.click("#run")
        guest.page.wait_for_function("(w) => document.querySelector('.sv-alert').innerText.includes(w)", arg=word)
        assert "'nobody/nothing'" in guest.page.inner_text(".sv-alert")
        assert "\n" not in guest.page.inner_text(".sv-alert")
        assert len(attempts) == (0 if offline else 1), "asked once, no retries"
    assert (guest.outside(), guest.errors) == ([], [])
    guest.close()
    app.close()
