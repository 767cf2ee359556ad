"""What the page says of its own state: a run that starts, goes on, stops or is refused, and whose it is."""

import re

import pytest
from browser import Visit, serving
from fake_engine import FakeEngine, recorded
from trace_makers import sampled_trace

from specviz.ui import page as page_module
from specviz.ui.recordings import Recording
from specviz.view.replay import recorded_delta

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]  # sockets of servers being closed
FIRST = recorded(prompt="A <b>bold</b> prompt\nof two lines", max_new_tokens=24)


@pytest.fixture(scope="module")
def served():
    with serving(FakeEngine(base_s=0.02, spec_s=0.03), recordings=[Recording("first", FIRST)]) as page:
        yield page


@pytest.fixture
def guest(browser, served):
    served.engine.endless = False
    visit = Visit(browser, served.url).open()
    visit.until("v.onView.values")
    yield visit
    visit.close()
    assert (visit.errors, visit.dialogs, visit.outside()) == ([], [], [])


def buttons(visit):
    """(text, can be pressed) of Run, then of Stop."""
    return tuple((visit.page.inner_text(name), visit.page.is_enabled(name)) for name in ("#run", "#stop"))


IDLE = (("Run", True), ("Stop", False))
STARTING = (("Starting …", False), ("Stop", True))
RUNNING = (("Running …", False), ("Stop", True))


def at_rest(visit):
    visit.until("v.buttons.state === 'idle'")
    assert buttons(visit) == IDLE


def test_run_is_busy_and_stop_is_there_only_while_a_run_goes_on(served, guest):
    served.engine.endless = True
    runs = len(served.engine.configs)
    at_rest(guest)
    colour = "(s) => getComputedStyle(s).backgroundColor"
    quiet = guest.page.locator("#stop").evaluate(colour)
    guest.run()
    guest.until("v.run.course.length > 4")
    assert buttons(guest) == RUNNING
    assert guest.page.locator("#stop").evaluate(colour) != quiet
    guest.page.get_by_label("Prompt", exact=True).press("Shift+Enter")  # asks for a run as well
    guest.page.click("#stop")
    guest.finish()
    at_rest(guest)
    assert len(served.engine.configs) == runs + 1


def test_a_run_that_waits_can_be_taken_back_and_asked_for_again(browser):
    engine = FakeEngine(endless=True, base_s=0.2, spec_s=0.2)
    with serving(engine) as page:
        first, second = (Visit(browser, page.url).open() for _ in range(2))
        first.run(Prompt="first")
        for _ in range(2):
            second.page.click("#run")
            second.page.wait_for_selector(".sv-waiting:visible")
            assert buttons(second) == STARTING
            second.page.click("#stop")
            at_rest(second)
        second.page.click("#run")
        first.page.click("#stop")
        second.until("v.run && v.run.course.length > 2")
        assert buttons(second) == RUNNING
        second.page.click("#stop")
        second.finish()
        at_rest(second)
        for visit in (first, second):
            visit.close()


def test_a_run_for_which_there_is_no_place_in_line_is_told(browser, monkeypatch):
    monkeypatch.setattr(page_module, "MAX_WAITING", 1)
    with serving(FakeEngine(endless=True, base_s=0.2, spec_s=0.2)) as page:
        visits = [Visit(browser, page.url).open() for _ in range(3)]
        visits[0].run()
        visits[1].page.click("#run")
        visits[1].page.wait_for_selector(".sv-waiting:visible")
        visits[2].page.click("#run")
        visits[2].page.wait_for_selector(".sv-alert:visible")
        assert "was not started" in visits[2].page.inner_text(".sv-alert")
        at_rest(visits[2])
        visits[0].page.click("#stop")
        visits[1].until("v.run && v.run.course.length > 2")
        visits[1].page.click("#stop")
        visits[1].finish()
        visits[2].run()
        visits[2].until("v.run.course.length > 2")
        assert not visits[2].page.is_visible(".sv-alert")
        for visit in visits:
            visit.close()


def test_run_pressed_while_the_server_is_away_is_given_back(browser):
    with serving(FakeEngine()) as page:
        visit = Visit(browser, page.url).open().run().finish()
        at_rest(visit)
    visit.page.click("#run")
    visit.page.wait_for_selector(".sv-alert:visible")
    assert re.search("nothing was started|was not started", visit.page.inner_text(".sv-alert"))
    at_rest(visit)
    visit.close()


def test_run_pressed_while_the_server_hangs_is_given_back(guest):
    guest.ask(
        "(v.deltas.ask = { missing: () => new Promise(() => {}) }, v.buttons.pressed(), void v.deltas.knock())"
    )
    guest.page.wait_for_selector(".sv-alert:visible")
    assert "nothing was started" in guest.page.inner_text(".sv-alert")
    at_rest(guest)


def test_a_stopped_run_says_after_how_many_tokens_in_lanes_and_verdict(served, guest):
    served.engine.endless = True
    guest.run()
    guest.until("v.run.steps.baseline.length > 4")
    assert guest.page.locator(".sv-end:visible").count() == 0
    guest.page.click("#stop")
    guest.finish()
    counts = guest.ask("['speculative', 'baseline'].map((lane) => v.run.steps[lane].at(-1).row.tokens)")
    assert guest.page.locator(".sv-end").all_inner_texts() == [f"stopped after {n} tokens" for n in counts]
    said = guest.page.inner_text(".sv-verdict")
    assert f"Stopped after {counts[0]} tokens with the draft and {counts[1]} tokens alone." in said
    assert guest.page.inner_text(".sv-tag") == "LIVE RUN, STOPPED"
    guest.page.keyboard.press("Home")
    assert guest.page.locator(".sv-end:visible").count() == 0  # at the start nothing has been stopped yet


def test_a_run_stopped_in_the_prompt_pass_says_so(browser):
    with serving(FakeEngine(reads_until_stopped=True)) as page:
        visit = Visit(browser, page.url).open()
        visit.run()
        visit.until("v.run.started.speculative")
        visit.page.click("#stop")
        visit.finish()
        assert visit.page.inner_text(".sv-small") == "Stopped by you before the first token."
        assert visit.page.locator(".sv-end").first.inner_text() == "stopped before the first token"
        at_rest(visit)
        visit.close()


def test_the_prompt_of_whatever_is_on_view_is_shown_and_whose_it_is(guest):
    prompt, whose = ".sv-prompttext", ".sv-prompt b"
    assert guest.page.inner_text(whose) == "Prompt of the recorded run"
    assert guest.page.evaluate("document.querySelector('.sv-prompttext').textContent") == FIRST.config["prompt"]
    assert guest.page.locator(".sv-prompt b b").count() == 0
    folded = guest.page.locator(prompt).bounding_box()["height"]
    guest.page.click(".sv-prompt summary")
    assert guest.page.locator(prompt).bounding_box()["height"] > folded * 1.5
    trace = sampled_trace(1)
    for config, shown in (({"prompt": "brought along"}, "brought along"), ({}, "none is named in the trace")):
        trace.config = config
        guest.ask("v.receive(argument)", recorded_delta(trace, f"brought-{len(config)}", "imported"))
        assert guest.page.inner_text(whose) == "Prompt of the imported trace"
        assert guest.page.inner_text(prompt) == shown
    guest.run(Prompt="my own").finish()
    assert (guest.page.inner_text(whose), guest.page.inner_text(prompt)) == ("Prompt", "my own")


def test_a_result_made_with_older_settings_is_marked_until_they_are_back(guest):
    stale, temperature = ".sv-stale", guest.page.get_by_label("number input for Temperature")
    assert not guest.page.is_visible(stale)
    guest.page.get_by_role("button", name="Hot sampling").click()
    guest.page.wait_for_selector(f"{stale}:visible")
    assert "still the recorded run" in guest.page.inner_text(stale)
    guest.run()
    guest.page.wait_for_selector(stale, state="hidden")
    guest.finish()
    assert not guest.page.is_visible(stale)
    temperature.fill("0.5")
    guest.page.wait_for_selector(f"{stale}:visible")
    assert guest.page.inner_text(stale).startswith("Made with older settings: Temperature has been changed since.")
    temperature.fill("1.2")
    guest.page.wait_for_selector(stale, state="hidden")
    guest.page.get_by_label("prompt lookup", exact=True).check()
    guest.page.wait_for_selector(f"{stale}:visible")
    guest.ask("v.receive(argument)", recorded_delta(sampled_trace(1), "brought", "imported"))
    assert not guest.page.is_visible(stale)  # it never was made with these, and nothing has changed since it came
    temperature.fill("0.9")
    guest.page.wait_for_selector(f"{stale}:visible")
    assert "still the imported trace" in guest.page.inner_text(stale)


BROKEN = {
    "a picture": (b"\x89PNG\r\n\x1a\n", "not JSON, so it is no trace"),
    "cut off": (FIRST.to_json()[:2000].encode(), "cut off or damaged"),
    "another program's": (b'{"log": {"version": "1.2"}}', "not a specviz trace"),
    "of another version": (b'{"format": "specviz-trace", "version": 7}', "version 7"),
    "damaged": (FIRST.to_json().replace('"u":', '"v":', 1).encode(), "The trace is damaged"),
    "with an id that is no number": (FIRST.to_json().replace('"0":[', '"x":[', 1).encode(), "is damaged"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_told_in_one_sentence_of_ours(guest, tmp_path, kind):
    data, part = BROKEN[kind]
    file = tmp_path / "broken.json"
    file.write_bytes(data)
    guest.page.set_input_files(".sv-opentrace", file)
    guest.page.wait_for_selector(".sv-alert:visible")
    said = guest.page.inner_text(".sv-alert")
    assert part in said
    assert re.search("; (give a file that|open it with) ", said)
    assert re.findall(r"\.(?:\s|$)", said) == ["."], said
    assert not re.search(r"char \d|line \d|Expecting|literal|column|fromhex|NoneType", said)
    assert guest.page.inner_text(".sv-tag") == "RECORDED RUN"  # what was shown stays
    guest.page.get_by_label("Close this message").click()
    assert not guest.page.is_visible(".sv-alert")


def test_a_message_is_not_wiped_away_by_a_run_that_goes_on(served, guest, tmp_path):
    served.engine.endless = True
    file = tmp_path / "broken.json"
    file.write_text("no")
    guest.run()
    guest.until("v.run.course.length > 2")
    guest.page.set_input_files(".sv-opentrace", file)
    guest.page.wait_for_selector(".sv-alert:visible")
    at = guest.ask("v.run.next")
    guest.until(f"v.run.next > {at} + 3")
    assert guest.page.is_visible(".sv-alert")
    guest.page.click("#stop")
    guest.finish()


def test_tokens_in_sentences_are_quoted_and_their_spaces_drawn(guest):
    tokens = guest.page.locator(".sv-detail .sv-inline")
    assert tokens.count() >= 2
    assert all(re.fullmatch("“.*”", text, re.DOTALL) for text in tokens.all_text_contents())
    marks = guest.page.locator(".sv-detail .sv-inline .m.sp").evaluate_all(
        "(spaces) => spaces.map((s) => [getComputedStyle(s, '::after').content, s.getBoundingClientRect().width])"
    )
    assert marks
    assert all(content == '"␣"' and width > 6 for content, width in marks)


def test_keys_act_anywhere_but_where_a_field_or_a_dialog_has_them(guest):
    page, shown = guest.page, "v.lanes.speculative.shown"
    page.locator("h1").click()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert guest.ask(shown) == 1
    page.get_by_role("button", name="Story", exact=True).focus()
    page.keyboard.press("ArrowRight")
    assert guest.ask(shown) == 2
    page.keyboard.press("Space")  # presses the button
    assert not guest.ask("v.transport.playing")
    page.get_by_label("prompt lookup", exact=True).focus()
    page.keyboard.press("Space")  # chooses it
    page.keyboard.press("ArrowRight")  # would move the choice, where gradio let it
    assert page.get_by_label("prompt lookup", exact=True).is_checked()
    assert (guest.ask(shown), guest.ask("v.transport.playing")) == (2, False)
    page.keyboard.press("x")
    assert "rejected" in page.inner_text(".sv-detail h3")
    at = guest.ask("v.transport.time")
    page.get_by_label("Seed", exact=True).focus()
    for key in ("Home", "x", "?", "Space", "ArrowLeft"):
        page.keyboard.press(key)
    assert guest.ask("v.transport.time") == at
    assert page.locator("dialog[open]").count() == 0
    page.locator("h1").click()
    page.keyboard.press("?")
    assert page.locator("dialog[open] kbd").count() == guest.ask("v.keys.table.length")
    page.keyboard.press("Home")
    assert guest.ask("v.transport.time") == at
    page.keyboard.press("Escape")
    page.keyboard.press("Home")
    assert guest.ask("v.transport.time") == 0


def test_before_any_run_every_part_says_what_it_is_for(browser):
    with serving(FakeEngine()) as page:
        visit = Visit(browser, page.url).open()
        assert visit.page.inner_text(".sv-big") == "Speedup n/a: nothing decoded yet"
        assert visit.page.inner_text(".sv-small").startswith("Press Run")
        assert "told here why it was kept or rejected" in visit.page.inner_text(".sv-why")
        assert set(visit.page.locator(".sv-card .value").all_inner_texts()) == {"n/a"}
        assert visit.page.locator(".sv-card .unit:visible").count() == 0
        assert visit.page.get_by_text("Save trace", exact=True).is_disabled()
        assert visit.page.locator(".sv-transport").bounding_box()["height"] < 200
        assert not visit.page.is_visible(".sv-prompt")
        visit.close()


@pytest.mark.parametrize(
    ("asked", "done", "share"), [("v.plots.draw", "v.plots.paint", 0.2), ("v.keepUp", "v.settle", 0.5)]
)
def test_drawing_that_takes_long_leaves_the_page_time_for_clicks(guest, asked, done, share):
    """Work of 100 ms, asked for without a pause, gets its share of the time and no more."""
    times, elapsed = guest.ask(
        f"""new Promise((tell) => {{
          let times = 0;
          {done} = () => {{
            for (const began = performance.now(); performance.now() - began < 100; );
            times += 1;
          }};
          const began = performance.now();
          const timer = setInterval(() => {{
            if (times < 5) return {asked}();
            clearInterval(timer);
            delete {done};
            return tell([times, performance.now() - began]);
          }}, 5);
        }})"""
    )
    assert elapsed >= (times - 1) * 100 / share


def test_a_run_that_was_given_up_too_early_frees_the_buttons_when_it_ends(guest):
    states = guest.ask(
        """(() => {
          const id = v.buttons.pressed();
          v.buttons.over();
          return [true, false].map((live) => (v.buttons.heard({ id, live }), v.buttons.state));
        })()"""
    )
    assert states == ["running", "idle"]
