"""Links, files, keys, small and dark screens: the rest of the page in a real browser."""

import threading
import time
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from browser import Visit, serving
from fake_engine import FakeEngine, recorded
from trace_makers import sampled_trace

from specviz.models import loading
from specviz.run import prepare
from specviz.trace import Trace
from specviz.ui.journal import Journal
from specviz.ui.offer import Offer, from_catalog
from specviz.ui.page import build_app, launch_options
from specviz.ui.recordings import Recording, load_all
from specviz.view.replay import recorded_delta

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def served():
    engine = FakeEngine(base_s=0.002, spec_s=0.003)
    with serving(engine, recordings=[Recording("first", recorded(max_new_tokens=48), "a laptop")]) as page:
        yield page


@pytest.fixture
def visit(browser, served):
    visits = []

    def make(**context):
        visits.append(Visit(browser, served.url, **context))
        return visits[-1]

    yield make
    for one in visits:
        one.close()
        assert (one.errors, one.dialogs, one.outside()) == ([], [], [])


def test_a_link_restores_every_setting_and_starts_nothing(served, visit):
    runs = len(served.engine.configs)
    guest = visit().open()
    page = guest.page
    page.get_by_label("Prompt", exact=True).fill("Grüße & <b>mehr</b>?")
    page.get_by_label("Seed", exact=True).fill("2147483647")
    page.get_by_label("number input for Temperature").fill("0.65")
    page.get_by_label("prompt lookup", exact=True).check()
    page.get_by_text("More settings").click()
    page.get_by_label("top-k").fill("40")
    page.get_by_label("Raw text, no chat template").check()
    page.get_by_text("float32", exact=True).click()
    page.click("#share")
    page.wait_for_selector("dialog[open]")
    assert "Your prompt is in the link" in page.inner_text("dialog[open]")
    link = page.input_value(".sv-address")
    assert parse_qs(urlsplit(link).query)["prompt"] == ["Grüße & <b>mehr</b>?"]
    other = visit().open("?" + urlsplit(link).query)
    page = other.page
    page.wait_for_function("document.querySelector('#prompt textarea').value.startsWith('Gr')")
    assert page.get_by_label("Prompt", exact=True).input_value() == "Grüße & <b>mehr</b>?"
    assert page.get_by_label("Seed", exact=True).input_value() == "2147483647"
    assert page.get_by_label("number input for Temperature").input_value() == "0.65"
    assert page.get_by_label("prompt lookup", exact=True).is_checked()
    assert "the link has filled in the settings" in page.inner_text(".sv-source")
    page.wait_for_timeout(500)
    assert len(served.engine.configs) == runs
    other.run().finish()
    config = served.engine.configs[-1]
    assert (config.seed, config.temperature, config.top_k, config.raw) == (2147483647, 0.65, 40, True)
    assert (config.drafts, config.dtype, config.prompt) == (("lookup",), "float32", "Grüße & <b>mehr</b>?")


def test_a_hostile_link_is_clamped_and_inert(visit):
    query = "prompt=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&temperature=1e9&draft=evil&seed=x&max_new_tokens=-5"
    guest = visit().open("?" + query)
    guest.page.wait_for_function("document.querySelector('#prompt textarea').value.startsWith('<img')")
    assert guest.page.get_by_label("number input for Temperature").input_value() == "2"
    assert guest.page.get_by_label("number input for New tokens, at most").input_value() == "1"
    assert guest.page.get_by_label("default draft", exact=True).is_checked()
    assert guest.page.locator("#prompt img").count() == 0


def saved(guest, button):
    with guest.page.expect_download() as download:
        button.click()
    return download.value.suggested_filename, open(download.value.path(), "rb").read()


def test_a_run_is_saved_opened_again_and_replayed_with_no_model(served, visit, tmp_path):
    guest = visit().open().run(Prompt="keep me").finish()
    name, data = saved(guest, guest.page.get_by_text("Save trace", exact=True))
    assert name == "specviz-trace.json"
    trace = Trace.from_json(data)
    assert trace.config["prompt"] == "keep me"
    name, data = saved(guest, guest.page.get_by_text("Save table", exact=True))
    assert name == "specviz-steps.csv"
    assert len(data.decode().strip().splitlines()) > len(trace.steps("speculative"))
    course = guest.ask("v.run.course.length")
    runs = len(served.engine.configs)
    file = tmp_path / "mine.json"
    file.write_text(trace.to_json(), encoding="utf-8")
    other = visit().open()
    other.page.set_input_files(".sv-opentrace", file)
    other.until("v.run.start.source === 'imported'")
    assert other.ask("v.run.course.length") == course
    other.ask("v.transport.toEnd()")
    assert other.page.inner_text(".sv-tag") == "IMPORTED TRACE"
    assert other.page.evaluate("document.querySelector('.sv-lane.baseline .sv-stream').textContent").startswith(
        "The "
    )
    assert len(served.engine.configs) == runs
    file.write_text('{"format": "specviz-trace", "version": 1, "events": "<script>"}', encoding="utf-8")
    other.page.set_input_files(".sv-opentrace", file)
    other.page.wait_for_selector(".sv-alert:not([hidden])")
    assert "The trace is damaged" in other.page.inner_text(".sv-alert")
    assert other.ask("v.run.course.length") == course  # what was shown stays


def test_each_plot_can_be_saved_as_a_picture(visit):
    guest = visit().open()
    guest.until("v.plots.plotly !== null && v.plots.plots.every((plot) => plot.box.data)")
    buttons = guest.page.locator(".sv-save")
    assert buttons.count() == guest.ask("v.plots.plots.length")
    name, data = saved(guest, buttons.first)
    assert name == "specviz-race.png"
    assert data.startswith(b"\x89PNG")


def test_the_race_is_watched_with_the_keyboard_alone(visit):
    guest = visit().open()
    page = guest.page
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('.sv-stream') !== null"):
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert not guest.ask("v.transport.playing")  # less motion: the end is shown at once
    end = guest.ask("v.transport.time")
    assert end > 0
    page.keyboard.press("Home")
    assert guest.ask("v.transport.time") == 0
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert guest.ask("v.lanes.speculative.shown") == 2
    page.keyboard.press("ArrowLeft")
    assert guest.ask("v.lanes.speculative.shown") == 1
    page.keyboard.press("Shift+X")
    assert "rejected" in page.inner_text(".sv-detail h3")
    page.keyboard.press("Shift+ArrowRight")
    assert guest.ask("v.pinned !== null")
    page.keyboard.press("]")
    assert page.locator(".sv-btn", has_text="1×").count() == 1
    page.evaluate(
        "document.activeElement.dispatchEvent("
        "new KeyboardEvent('keydown', { key: ']', altKey: true, ctrlKey: true, bubbles: true }))"
    )
    assert page.locator(".sv-btn", has_text="2×").count() == 1
    guest.ask("v.transport.setSpeed(0.001)")  # so that it goes on for as long as this takes
    page.keyboard.press("Space")
    guest.until("v.transport.playing")
    page.keyboard.press("Space")
    assert not guest.ask("v.transport.playing")
    page.keyboard.press("End")
    assert guest.ask("v.transport.time") == end
    page.keyboard.press("?")
    assert page.is_visible("dialog[open]")
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0


def test_keys_do_nothing_to_the_race_while_a_prompt_is_typed(visit):
    guest = visit().open()
    time_before = guest.ask("v.transport.time")
    guest.page.get_by_label("Prompt", exact=True).press_sequentially("x [?] ")
    guest.page.keyboard.press("Home")
    assert guest.ask("v.transport.time") == time_before
    assert guest.page.locator("dialog[open]").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_on_any_screen_and_text_can_be_read(visit, width, scheme):
    guest = visit(color_scheme=scheme)
    guest.page.set_viewport_size({"width": width, "height": 844})
    guest.open()
    guest.page.wait_for_timeout(600)
    assert guest.page.evaluate("document.documentElement.scrollWidth") <= width
    for selector in (".sv-big", ".sv-legend", ".sv-lane.speculative", "#run"):
        box = guest.page.locator(selector).first.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["y"] < 844
    assert guest.page.evaluate(CONTRASTS) == []


CONTRASTS = """() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((v) => {
      const c = v / 255;
      return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    const clear = (colour) => /rgba\\(.*, 0\\)|transparent/.test(colour);
    while (node && clear(getComputedStyle(node).backgroundColor)) node = node.parentElement;
    return node ? getComputedStyle(node).backgroundColor : "rgb(255, 255, 255)";
  };
  const faults = [];
  const kinds = ["accepted", "rejected", "corrected", "bonus", "untested"];
  const selectors = [".sv-big", ".sv-small", ".sv-source", ".sv-why", ".sv-hint", ".sv-card .label", "#run",
    ".sv-tools .sv-btn", ...kinds.map((kind) => `.sv-stream .${kind}`)];
  for (const selector of selectors) {
    const node = document.querySelector(selector);
    if (!node) { faults.push(`${selector} is missing`); continue; }
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) faults.push(`${selector} ${ratio.toFixed(2)}`);
  }
  return faults;
}"""


def test_scrubbing_hovering_and_clicking_ask_the_server_for_nothing(visit):
    guest = visit().open()
    guest.until("!v.transport.playing && v.plots.plotly !== null")
    guest.page.wait_for_timeout(500)
    before = len([url for url in guest.requests if "heartbeat" not in url])
    guest.page.keyboard.press("Tab")
    guest.ask("v.transport.seek(0.4)")
    guest.page.locator(".sv-stream .c").first.hover()
    guest.page.locator(".sv-stream .c").first.click()
    guest.page.locator(".sv-strip").click()
    guest.page.get_by_role("button", name="Next rejection").click()
    guest.page.get_by_label("rejected tokens").uncheck()
    guest.page.locator(".sv-info").first.click()
    guest.page.wait_for_timeout(500)
    assert len([url for url in guest.requests if "heartbeat" not in url]) == before
    assert guest.page.locator(".sv-stream .c.rejected:visible").count() == 0
    assert "÷" in guest.page.inner_text(".sv-more .values")


def test_why_the_last_rejected_token_was_rejected_is_said_in_a_sentence(visit):
    guest = visit().open()
    why = guest.page.inner_text(".sv-why")
    assert guest.page.inner_text(".sv-detail h3").startswith("✗") or "rejected" in guest.page.inner_text(
        ".sv-detail h3"
    )
    assert "at temperature 0 only the target's first choice is kept" in why
    guest.page.get_by_label("number input for Temperature").fill("1")
    guest.run().finish()
    guest.ask("v.transport.toEnd()")
    assert "÷" in guest.page.inner_text(".sv-why")
    assert "not below that" in guest.page.inner_text(".sv-why")


STORIES = """v.run.steps.speculative.flatMap((step) => step.chips.map((chip) => {
  v.detail.show(v.run, { step, chip });
  const siblings = step.drafted.filter((other) => other.parent === chip.parent && other !== chip);
  const kept = siblings.some((other) => other.kind === "accepted");
  const branch = step.drafted[chip.parent]?.kind ?? "accepted";
  return [chip.kind, kept, branch, v.detail.sentence.textContent, v.detail.facts.textContent];
}))"""


def test_in_a_tree_each_token_is_told_who_guessed_it_and_why_it_was_passed_over(visit):
    guest = visit().open()
    seen = set()
    for seed in range(3):
        guest.ask("v.receive(argument)", recorded_delta(sampled_trace(seed, width=2), f"tree-{seed}", "imported"))
        for kind, kept, branch, why, facts in guest.ask(STORIES):
            if kind == "untested":
                seen.add((kept, branch))
                assert kept == ("another guess for the same place was kept" in why)
                assert (not kept and branch != "accepted") == ("a guess before it was not kept" in why)
            assert ("guessed bysmall" in facts) == (kind in ("untested", "rejected", "accepted"))
    assert {(True, "accepted"), (False, "rejected")} <= seen


def test_choosing_a_draft_chooses_its_length_but_a_link_keeps_its_own(browser):
    drafts = (("small", "small"), ("wide", "wide"))
    with serving(
        FakeEngine(), offer=Offer((("big", "big"),), drafts, "big", "small", draft_lens={"wide": 12})
    ) as page:
        guest = Visit(browser, page.url).open()
        has = "(n) => document.querySelector('input[aria-label^=\"number input for Draft\"]').value === n"
        guest.page.wait_for_function(has, arg="4")
        for draft, length in (("wide", "12"), ("small", "4")):
            guest.page.get_by_label(draft, exact=True).check()
            guest.page.wait_for_function(has, arg=length)
        guest.open("?draft=wide&draft_len=7&prompt=x")
        guest.page.wait_for_function(has, arg="7")
        guest.page.wait_for_function("document.querySelector('input[type=radio]:checked[value=wide]') !== null")
        guest.close()


def test_a_preset_fills_the_controls_with_no_request(visit):
    guest = visit().open()
    guest.until("v.plots.plotly !== null")  # the last part of the page to arrive

    def calls():
        """What asks the server to compute; parts of the page itself may still arrive late."""
        return [url for url in guest.requests if "/gradio_api/" in url and "heartbeat" not in url]

    before = calls()
    guest.page.get_by_role("button", name="Hot sampling").click()
    guest.page.wait_for_function("document.querySelector('#prompt textarea').value.includes('moon')")
    assert guest.page.get_by_label("number input for Temperature").input_value() == "1.2"
    assert guest.page.get_by_label("Seed", exact=True).input_value() == "7"
    assert calls() == before


def test_after_a_textbook_case_the_next_preset_has_the_models_back_that_were_chosen_before(browser):
    drafts = tuple((name, name) for name in ("small", "tiny", "blank", "@target"))
    offer = Offer((("big", "big"), ("smollm2-135m", "smollm2-135m")), drafts, "big", "small")
    with serving(FakeEngine(), offer=offer) as page:
        guest = Visit(browser, page.url).open()

        def press(name):
            guest.page.get_by_role("button", name=name, exact=True).click()

        def chosen(target, draft):
            guest.page.wait_for_function(
                "(names) => names.every((name) => "
                "[...document.querySelectorAll('input[type=radio]:checked')].some((box) => box.value === name))",
                arg=[target, draft],
            )

        guest.page.get_by_text("More settings").click()
        press("All accepted")
        chosen("smollm2-135m", "@target")
        press("None accepted")
        chosen("smollm2-135m", "blank")
        press("Code")
        chosen("big", "small")
        press("None accepted")
        chosen("smollm2-135m", "blank")
        guest.page.get_by_label("tiny", exact=True).first.check()
        press("Code")
        guest.page.wait_for_timeout(300)
        chosen("smollm2-135m", "tiny")  # the visitor's own choice stays
        guest.close()


def test_waiting_in_the_queue_is_told(browser):
    engine = FakeEngine(endless=True, base_s=0.2, spec_s=0.2)
    with serving(engine) as page:
        first, second, third = (Visit(browser, page.url).open() for _ in range(3))
        first.run()
        second.page.click("#run")
        second.page.wait_for_function("document.querySelector('.sv-waiting').innerText.includes('Yours is next')")
        third.page.click("#run")
        third.page.wait_for_function(
            "document.querySelector('.sv-waiting').innerText.includes('number 2 in line')"
        )
        for guest in (second, third):
            assert "Another visitor's run is on" in guest.page.inner_text("#progress")
            assert "queue" not in guest.page.inner_text("#progress")
        assert not first.page.is_visible(".sv-waiting")
        third.page.click("#stop")
        third.page.wait_for_selector(".sv-waiting", state="hidden")
        first.page.click("#stop")
        first.finish()
        second.until("v.run && v.run.course.length > 2")
        second.page.click("#stop")
        second.finish()
        for guest in (first, second, third):
            guest.close()


def test_loading_is_told_with_what_and_how_far(browser):
    with serving(FakeEngine(load_s=3.0)) as page:
        guest = Visit(browser, page.url).open()
        guest.page.click("#run")
        guest.page.wait_for_function("document.querySelector('.sv-waiting').innerText === 'Loading the target …'")
        guest.page.wait_for_selector(".sv-waitbox .sv-track:not([hidden])")
        guest.until("v.run && v.run.course.length > 0")
        assert not guest.page.is_visible(".sv-waiting")
        guest.finish().close()


def test_a_server_that_goes_away_is_told_and_what_has_come_stays(browser):
    engine = FakeEngine(endless=True, base_s=0.2, spec_s=0.2)
    with serving(engine) as page:
        guest = Visit(browser, page.url).open().run()
        guest.until("v.run.course.length > 5")
    guest.page.wait_for_selector(".sv-alert:not([hidden])")
    assert "The server no longer answers" in guest.page.inner_text(".sv-alert")
    assert guest.ask("v.run.course.length") > 5
    assert not guest.ask("v.run.live")
    guest.ask("v.tools.save('trace')")
    guest.page.wait_for_function(
        "document.querySelector('.sv-alert').innerText.includes('nothing could be saved')"
    )
    guest.close()


def test_a_run_that_the_server_has_forgotten_is_given_up_until_it_goes_on(browser, monkeypatch):
    engine, going = FakeEngine(endless=True), threading.Event()
    going.set()
    monkeypatch.setattr("fake_engine.time", SimpleNamespace(sleep=lambda _: time.sleep(0.05) or going.wait()))
    with serving(engine) as page:
        guest = Visit(browser, page.url).open().run()
        guest.until("v.run.course.length > 5")
        guest.ask("v.deltas.fill({ run: v.run.id, from: 0, to: 9 })")
        assert guest.ask("v.run.live")  # asking alone gives nothing up
        going.clear()
        monkeypatch.setattr(Journal, "missing", lambda *_: None)
        guest.page.wait_for_function(
            "document.querySelector('.sv-alert').innerText.includes('no longer knows this run')"
        )
        assert not guest.ask("v.run.live")
        assert guest.page.inner_text(".sv-lane.baseline .sv-end").startswith("cut off after")
        assert guest.page.is_enabled("#run")
        going.set()
        guest.until("v.run.live")
        assert not guest.page.is_visible(".sv-alert")
        guest.page.click("#stop")
        guest.finish().close()


def test_a_lane_stays_where_the_visitor_reads(visit):
    guest = visit().open()
    guest.ask("v.transport.seek(0)")
    bottom = "(s) => s.scrollHeight - s.scrollTop - s.clientHeight"
    stream = guest.page.locator(".sv-lane.speculative .sv-stream")
    guest.ask("v.transport.seek(v.run.duration * 0.8)")
    assert stream.evaluate(bottom) < 2
    stream.evaluate("(s) => { s.scrollTop = 0; }")
    guest.until("!v.lanes.speculative.following")
    guest.ask("v.transport.toEnd()")
    assert stream.evaluate("(s) => s.scrollTop") == 0
    assert stream.evaluate(bottom) > 24
    stream.evaluate("(s) => { s.scrollTop = s.scrollHeight; }")
    guest.until("v.lanes.speculative.following")


def test_each_number_explains_itself_beside_it_one_at_a_time(visit):
    guest = visit().open()
    marks, open_ones = guest.page.locator(".sv-info"), guest.page.locator(".sv-more:not([hidden])")
    number = guest.page.locator(".sv-card").nth(4).bounding_box()
    for index in range(marks.count()):
        marks.nth(index).click()
        assert open_ones.count() == 1
        values = guest.page.inner_text(".sv-more:not([hidden]) .values")
        assert "=" in values
        assert "n/a" not in values.partition("=")[0]
        assert marks.nth(index).bounding_box()["width"] >= 24
        box = open_ones.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 1280
    assert guest.page.locator(".sv-card").nth(4).bounding_box()["height"] == number["height"]
    guest.page.keyboard.press("Escape")
    assert open_ones.count() == 0


def test_the_recording_plays_before_any_model_is_loaded(browser, monkeypatch):
    monkeypatch.setattr(loading, "_REGISTRY", {})
    app = build_app(prepare, offer=from_catalog(), recordings=load_all())
    _, url, _ = app.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, **launch_options())
    guest = Visit(browser, url, reduced_motion="no-preference").open()
    guest.until("v.transport.playing && v.lanes.speculative.shown > 0 && v.lanes.baseline.shown > 0")
    guest.until("!v.transport.playing && v.transport.time === v.run.duration")
    assert loading._REGISTRY == {}
    guest.close()
    app.close()
