"""The page in a real browser: groups B and C of the cases that only a browser can answer."""

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from browser import Visit, serving
from fake_engine import FakeEngine, recorded

from specviz.trace import Piece
from specviz.ui.journal import Journal
from specviz.ui.recordings import Recording
from specviz.view.figures import figures
from specviz.view.payload import Feed
from specviz.view.replay import recorded_delta, start_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore"),  # sockets of servers and browsers that are being closed
]


@pytest.fixture(scope="module")
def steady():
    """A page whose engine takes its time, so that there is something to look at while it runs."""
    engine = FakeEngine(base_s=0.02, spec_s=0.03, endless=False)
    with serving(engine, recordings=[Recording("first", recorded(max_new_tokens=48), "a laptop")]) as served:
        yield served


@pytest.fixture
def visit(browser):
    visits = []

    def make(served, **context):
        visits.append(Visit(browser, served.url, **context))
        return visits[-1]

    yield make
    for one in visits:
        one.close()
        assert one.errors == []
        assert one.dialogs == []


def test_a_recorded_run_plays_on_opening_with_no_model_and_no_request_to_another_host(visit):
    engine, long = FakeEngine(), Recording("long", recorded(max_new_tokens=2400), "a laptop")
    with serving(engine, recordings=[long]) as served:
        guest = visit(served, reduced_motion="no-preference").open()
        guest.until("v.transport.playing && v.lanes.speculative.shown > 0")
        assert guest.ask("v.transport.time < v.run.duration")
        assert engine.configs == []
        guest.close()


def test_a_recorded_run_ends_with_what_was_measured(steady, visit):
    guest = visit(steady).open()
    guest.until("v.run && !v.transport.playing")
    assert guest.page.inner_text(".sv-big").endswith("faster than the target alone")
    guest.ask("v.transport.seek(v.run.duration / 2)")
    assert guest.page.inner_text(".sv-big").endswith(" so far")
    guest.ask("v.transport.toEnd()")
    guest.ask("(v.run.started.speculative.prefill_s = 2.9926, v.render())")
    assert guest.page.locator("[data-key=prefill]").get_by_text("3.0s", exact=True).is_visible()
    assert "Identical to the baseline" in guest.page.inner_text(".sv-verdict")
    assert guest.outside() == []


def test_a_run_streams_every_event_and_ends_with_speedup_and_verdict(steady, visit):
    guest = visit(steady).open().run(Prompt="hello").finish()
    assert guest.page.inner_text(".sv-tag") == "LIVE RUN"
    trace = guest.ask("v.ask.export({run: v.run.id, what: 'trace'})")
    events = json.loads(trace["text"])["events"]
    assert guest.ask("v.run.course.length") == sum(event["event"] == "step" for event in events)
    assert guest.ask("v.run.steps.speculative.at(-1).row.tokens") == 128
    assert "faster than the target alone" in guest.page.inner_text(".sv-big")
    assert guest.outside() == []


COUNT_UPDATES = """() => {
  const view = document.querySelector(".sv").svView;
  const receive = view.receive.bind(view);
  window.svBytes = [];
  view.receive = (delta) => {
    window.svBytes.push([performance.now(), JSON.stringify(delta).length]);
    receive(delta);
  };
}"""


def test_case_57_a_fast_engine_is_shown_whole_with_bounded_updates(visit):
    engine = FakeEngine(base_s=0.002, spec_s=0.004, num_tokens=2000)
    with serving(engine) as served:
        guest = visit(served).open()
        guest.page.evaluate(COUNT_UPDATES)
        guest.page.get_by_label("number input for Draft length γ").fill("5")
        guest.run(Prompt="fast").finish()
        assert guest.ask("v.run.steps.baseline.length") == 2000
        updates = guest.page.evaluate("window.svBytes")
        span = (updates[-1][0] - updates[0][0]) / 1000
        assert span > 2
        assert len(updates) <= 10 * span + 15
        assert max(size for _, size in updates) < 400_000
        assert guest.ask("v.run.next") >= len(updates)
        assert guest.ask("v.run.early.size") == 0
        assert guest.ask("v.run.end !== null")


WATCH_PLOT = """() => {
  const box = document.querySelector(".sv-plotbox");
  const drawn = box.querySelector(".main-svg");
  window.svLost = 0;
  const look = () => { if (!box.querySelector(".main-svg")) window.svLost += 1; };
  new MutationObserver(look).observe(box, { childList: true, subtree: true });
  window.svSame = () => document.querySelector(".sv-plotbox") === box && box.querySelector(".main-svg") === drawn;
}"""


def test_case_58_plots_are_drawn_in_place_and_keep_the_zoom(steady, visit):
    guest = visit(steady).open()
    guest.until("v.plots.plotly !== null")
    guest.run(Prompt="plots")
    guest.until("v.run.course.length > 8 && v.plots.plots[0].box.data")
    guest.page.wait_for_timeout(600)
    guest.page.evaluate(WATCH_PLOT)
    guest.page.locator(".sv-plotbox").first.scroll_into_view_if_needed()
    frame = guest.page.locator(".sv-plot .nsewdrag").first.bounding_box()
    x, y = frame["x"] + frame["width"] * 0.1, frame["y"] + frame["height"] * 0.5
    guest.page.mouse.move(x, y)
    guest.page.mouse.down()
    guest.page.mouse.move(x + frame["width"] * 0.2, y, steps=4)
    guest.page.mouse.up()
    guest.until("v.plots.plots[0].zoom?.xaxis")
    zoom = guest.ask("v.plots.plots[0].zoom.xaxis")
    guest.finish()
    guest.until("v.plots.plots[0].box.data[0].x.at(-1) === v.run.steps.speculative.at(-1).t")
    assert guest.ask("v.plots.plots[0].box.layout.xaxis.range") == zoom
    assert guest.ask("v.plots.plots[0].box.data[0].x.at(-1)") > zoom[1]
    assert guest.page.evaluate("window.svSame()")
    assert guest.page.evaluate("window.svLost") == 0


FEED = """(deltas) => {
  const view = document.querySelector(".sv").svView;
  const boxes = [...document.querySelectorAll(".sv-plotbox")];
  const drawn = boxes.map((box) => box.querySelector(".main-svg"));
  const found = { blank: 0, rebuilt: 0, ranges: boxes.map(() => new Set()), points: [] };
  for (const delta of deltas) {
    view.receive(delta);
    view.settle();
    view.plots.paint();
    boxes.forEach((box, index) => {
      const shown = box.data.filter((trace) => trace.x.length > 0).length;
      if (box.querySelectorAll(".main-svg .trace").length < shown) found.blank += 1;
      if (box.querySelector(".main-svg") !== drawn[index]) found.rebuilt += 1;
      found.ranges[index].add(JSON.stringify(box.layout.xaxis.range));
    });
    found.points.push(boxes[2].data[0].x.length);
  }
  const figures = document.querySelectorAll(".js-plotly-plot").length;
  return { ...found, figures, ranges: found.ranges.map((set) => set.size) };
}"""


def test_case_58_over_200_updates_no_plot_blanks_jumps_or_is_made_anew(steady, visit):
    trace = recorded(max_new_tokens=600)
    feed = Feed("ab" * 16, trace.pieces.__getitem__, trace.config)
    cuts = [len(trace.events) * i // 200 for i in range(201)]
    parts = [trace.events[a:b] for a, b in pairwise(cuts)]
    start = start_of(trace, "live")
    deltas = [feed.delta(part, **({"start": start} if not i else {})) for i, part in enumerate(parts)]
    guest = visit(steady).open()
    guest.until("v.plots.plotly !== null && v.plots.plots.every((plot) => plot.box.data)")
    before = guest.page.evaluate("document.querySelectorAll('.js-plotly-plot').length")
    found = guest.page.evaluate(FEED, deltas)
    assert (found["blank"], found["rebuilt"]) == (0, 0)
    assert found["points"] == sorted(found["points"])
    assert found["points"][-1] == len(trace.steps("speculative"))
    assert max(found["ranges"][:3]) < 25, "axes over time grow in steps, not with each point"
    assert found["figures"] == before == len(figures())


def test_case_58_the_server_makes_no_figure_objects_at_all():
    code = (
        "import sys; from fake_engine import FakeEngine; from specviz.ui.runs import Runs; "
        "from specviz.ui.page import build_app; from specviz.ui.settings import DEFAULTS; "
        "build_app(FakeEngine().prepare); runs = Runs(FakeEngine().prepare); "
        "assert list(runs.deltas(runs.journal.open(), DEFAULTS))[-1]['phase'] == 'done'; "
        "made = [n for n in sys.modules if n.startswith(('plotly.graph_obj', 'matplotlib.figure'))]; "
        "assert not made, made"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent, timeout=120,
                   env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)})  # fmt: skip


def test_what_the_page_missed_is_asked_for(steady, visit):
    guest = visit(steady).open()
    guest.ask(
        "void (() => { const receive = v.receive.bind(v); "
        "v.receive = (d) => { if (d.seq % 3 === 1 && d.phase === 'running') return; receive(d); }; })()"
    )
    guest.run(Prompt="gaps").finish()
    assert guest.ask("v.run.early.size") == 0
    assert guest.ask("v.run.steps.speculative.at(-1).row.tokens") == 128
    assert guest.ask("v.run.steps.baseline.length") == 128


STYLES = """() => [...document.querySelectorAll(".sv-lane.speculative .c, .sv-legend .c")].map((chip) => {
  const style = getComputedStyle(chip);
  const lines = [style.textDecorationLine, style.textDecorationStyle, style.outlineStyle, style.fontWeight];
  return [chip.classList[1], style.backgroundColor, lines.join(" "), chip.dataset.tag];
})"""


def only(delta, kind):
    """The delta with nothing but tokens of one kind on the page."""
    events = [{**e, "chips": [c for c in e["chips"] if c["kind"] == kind]} if "chips" in e else e
              for e in delta["events"] if e["lane"] == "speculative"]  # fmt: skip
    return {**delta, "events": events}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_case_59_colours_belong_to_classes_and_classes_differ_by_more_than_hue(steady, visit, scheme):
    seen = {}
    guest = visit(steady, color_scheme=scheme).open()
    for kind in ("accepted", "rejected", "corrected", "bonus", "untested"):
        engine = FakeEngine(verdicts="accepted" if kind in ("accepted", "bonus") else "rejected")
        trace = recorded(engine, max_new_tokens=12)
        guest.ask("v.receive(argument)", only(recorded_delta(trace, f"first-{kind}", "recorded"), kind))
        guest.ask("v.transport.toEnd()")
        assert set(guest.ask("v.lanes.speculative.nodes().map((node) => node.classList[1])")) == {kind}
        for name, *style in guest.page.evaluate(STYLES):
            assert seen.setdefault(name, style) == style
    assert len(seen) == 5
    for part in range(3):
        assert len({style[part] for style in seen.values()}) == 5


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)><think>x</think> a<b & c ${alert(3)} {{value}}"


def test_case_45_hostile_text_is_shown_and_inert(visit):
    pieces = [HOSTILE, " <b>bold</b>", "${document.title='owned'}", "{{#each x}}", " ok."]
    with serving(FakeEngine(words=pieces, agree=0.5)) as served:
        guest = visit(served).open().run(Prompt=HOSTILE).finish()
        guest.ask("v.transport.toEnd()")
        text = guest.page.evaluate("document.querySelector('.sv-lane.baseline .sv-stream').textContent")
        assert text.startswith("".join(pieces))
        assert guest.ask("v.run.start.config.prompt") == HOSTILE
        guest.page.locator(".sv-lane.baseline .c").first.click()
        assert "<script>alert(1)</script>" in guest.page.evaluate(
            "document.querySelector('.sv-detail').textContent"
        )
        made = guest.page.evaluate(
            "document.querySelectorAll('.sv script, .sv img, .sv think, .sv b:not([class]) b').length"
        )
        assert made == 0
        assert "owned" not in guest.page.title()
        assert guest.outside() == []


COPY_ALL = """(lane) => {
  const range = document.createRange();
  range.selectNodeContents(document.querySelector(`.sv-lane.${lane} .sv-stream`));
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  const clipboardData = new DataTransfer();
  document.dispatchEvent(new ClipboardEvent("copy", { clipboardData, cancelable: true }));
  return clipboardData.getData("text/plain");
}"""


def copied(guest, lane="baseline"):
    return guest.page.evaluate(COPY_ALL, lane)


def test_case_44_spaces_and_newlines_have_width_and_marks_and_are_copied_as_themselves(visit):
    words = ["    ", "x", "\n\n", "\t"]
    wrong = [" ", "\n", "  ", "\t\t", "\n\n\n"]
    with serving(FakeEngine(words=words, wrong=wrong, agree=0.6)) as served:
        guest = visit(served).open().run(Prompt="x").finish()
        guest.ask("v.transport.toEnd()")
        guest.page.get_by_label("spaces", exact=True).check()
        chips = guest.page.evaluate(
            "[...document.querySelectorAll('.sv-lane.speculative .g:not([hidden]) > .c')].map((c) => "
            "[c.textContent, c.getBoundingClientRect().width, c.querySelectorAll('.m').length, c.classList[1]])"
        )
        blank = [chip for chip in chips if chip[0].strip() == ""]
        assert len(blank) > 10
        assert all(width > 4 and marks for _, width, marks, _ in blank)
        assert {"accepted", "rejected", "corrected"} <= {kind for *_, kind in blank}
        text = copied(guest)
        assert text.startswith("    x\n\n\t    x\n\n\t")
        assert set(text) == {" ", "x", "\n", "\t"}
        assert copied(guest, "speculative").startswith("    x\n\n\t    x\n\n\t")


def test_case_47_special_tokens_are_marked_chips_and_no_part_of_the_text(visit):
    words = ["hi", Piece(b"<|im_start|>", True), " there", Piece(b"<|im_end|>", True)]
    with serving(FakeEngine(words=words, agree=1.0)) as served:
        guest = visit(served).open().run(Prompt="x").finish()
        guest.ask("v.transport.toEnd()")
        labels = guest.page.evaluate(
            "[...document.querySelectorAll('.sv-lane.baseline .c.special .label')].map((m) => m.dataset.mark)"
        )
        assert labels[:2] == ["<|im_start|>", "<|im_end|>"]
        assert copied(guest).startswith("hi therehi there")
        chips = guest.page.locator(".sv-lane.baseline .g:not([hidden]) > .c").count()
        assert chips == guest.ask("v.run.steps.baseline.at(-1).row.tokens")


def test_case_50_right_to_left_and_broken_characters_stay_in_token_order(visit):
    shalom = "שלום"
    words = ["a", shalom[:2], shalom[2:], " ", "e", "\u0301", "\u202e", "abc", b"\xf0\x9f", b"\x94\xa5", " z"]
    with serving(FakeEngine(words=words, agree=1.0)) as served:
        guest = visit(served).open().run(Prompt="x").finish()
        guest.ask("v.transport.toEnd()")
        whole = "a" + shalom + " e\u0301\u202eabc🔥 z"
        assert copied(guest).startswith(whole)
        boxes = guest.page.evaluate(
            "[...document.querySelectorAll('.sv-lane.speculative .g:not([hidden]) > .c')].slice(0, 8)"
            ".map((c) => { const b = c.getBoundingClientRect(); return [b.top, b.left]; })"
        )
        assert boxes == sorted(boxes)
        text = guest.page.evaluate("document.querySelector('.sv-lane.baseline .sv-stream').textContent")
        assert "�" not in text
        assert text.count("🔥") == copied(guest).count("🔥")


@pytest.mark.parametrize("phase", ["prompt pass", "both lanes", "baseline"])
def test_case_51_stop_frees_the_engine_and_keeps_what_was_made(visit, phase, monkeypatch):
    slow = {
        "prompt pass": {"prefill_s": 1.0, "base_s": 0.1, "spec_s": 0.1},
        "both lanes": {"base_s": 0.2, "spec_s": 0.2},
    }
    engine = FakeEngine(endless=True, **slow.get(phase, {"base_s": 0.15, "spec_s": 0.15}))
    at = []

    def stop(journal, ticket, wanted=Journal.stop):
        at.append(engine.passes)
        return wanted(journal, ticket)

    monkeypatch.setattr(Journal, "stop", stop)
    with serving(engine) as served:
        guest = visit(served).open()
        if phase == "baseline":
            guest.page.get_by_label("none", exact=True).check()
        guest.run(Prompt="stop me")
        guest.until("v.run.started.speculative" if phase == "prompt pass" else "v.run.course.length > 4")
        guest.page.click("#stop")
        guest.finish()
        passes = engine.passes
        guest.page.wait_for_timeout(1000)
        assert engine.passes == passes
        assert passes <= at[0] + 2, "a pass for each lane, from the moment that the server hears of it"
        assert "Stopped by you" in guest.ask("v.run.note")
        if phase != "prompt pass":
            assert guest.ask("v.run.course.length") > 4
        engine.endless, engine.prefill_s, engine.base_s, engine.spec_s = False, 0.0, 0.0, 0.0
        guest.run(Prompt="and again").finish()
        assert guest.ask("v.run.phase") == "done"
        assert len(engine.configs) == 2


def test_without_a_draft_no_verdict_and_no_speedup_is_claimed(steady, visit):
    guest = visit(steady).open()
    guest.page.get_by_label("none", exact=True).check()
    guest.run(Prompt="alone").finish()
    guest.until("v.status.textContent.includes('128 tokens')")
    assert guest.page.inner_text(".sv-big") == "Speedup n/a: no draft in this run"
    assert guest.page.inner_text(".sv-verdict").startswith("There was no draft in this run")
    assert "Both lanes" not in guest.page.inner_text(".sv-small")
    assert not guest.page.is_visible(".sv-lane.speculative")
    assert guest.page.is_visible(".sv-lane.baseline")
    guest.page.get_by_label("default draft", exact=True).check()
    guest.run(Prompt="together").finish()
    assert guest.page.is_visible(".sv-lane.speculative")


def test_stop_while_waiting_takes_the_visitor_out_of_the_queue(visit):
    engine = FakeEngine(endless=True, base_s=0.1, spec_s=0.1)
    with serving(engine) as served:
        first, second = visit(served).open(), visit(served).open()
        first.run(Prompt="first")
        second.page.click("#run")
        second.page.wait_for_selector(".sv-waiting:visible")
        second.page.click("#stop")
        second.page.wait_for_selector(".sv-waiting", state="hidden")
        first.page.click("#stop")
        first.finish()
        first.page.wait_for_timeout(500)
        assert [config.prompt for config in engine.configs] == ["first"]


def test_case_53_a_closed_or_reloaded_page_frees_the_engine(visit):
    engine = FakeEngine(endless=True, base_s=0.1, spec_s=0.1)
    with serving(engine) as served:
        for leave in ("close", "reload"):
            guest = visit(served).open().run(Prompt=leave)
            guest.until("v.run.course.length > 3")
            guest.page.close() if leave == "close" else guest.page.reload()
            deadline = time.monotonic() + 50
            while time.monotonic() < deadline:
                passes = engine.passes
                time.sleep(0.7)
                if engine.passes == passes:
                    break
            assert engine.passes == passes
        engine.endless, engine.base_s, engine.spec_s = False, 0.0, 0.0
        assert visit(served).open().run(Prompt="next").finish().ask("v.run.phase") == "done"


def test_case_54_visitors_see_only_their_own_runs(visit):
    with serving(FakeEngine(base_s=0.01, spec_s=0.01)) as served:
        first, second = visit(served).open(), visit(served).open()
        first.page.get_by_label("Prompt", exact=True).fill("mine")
        second.page.get_by_label("Prompt", exact=True).fill("yours")
        first.page.get_by_label("Seed", exact=True).fill("1")
        second.page.get_by_label("Seed", exact=True).fill("2")
        first.page.click("#run")
        second.page.click("#run")
        for guest, seed in ((first, "1"), (second, "2")):
            guest.until("v.run && !v.run.live")
            assert guest.ask("v.run.started.speculative.seed") == seed
            solo = recorded(prompt="mine" if seed == "1" else "yours", seed=int(seed), max_new_tokens=128)
            ids = guest.ask("v.run.steps.speculative.flatMap((s) => s.chips.map((c) => c.id))")
            assert ids == [
                token
                for step in solo.steps("speculative")
                for token in [*(n.token_id for n in step.nodes), step.final.token_id]
            ]
            kept = guest.ask("v.ask.export({run: v.run.id, what: 'trace'})")["text"]
            assert ("yours" if seed == "1" else "mine") not in kept
        third = visit(served).open()
        assert third.ask("v.run === null")
        assert third.page.get_by_label("Prompt", exact=True).input_value().startswith("Write a short story")
        third.close()  # parts of its page may still be on their way from the server


def test_errors_are_one_sentence_and_keep_what_is_shown(visit):
    engine = FakeEngine(refuse="The model 'x' is not here; run: hf download x", base_s=0.01, spec_s=0.01)
    with serving(engine, recordings=[Recording("first", recorded(), "")]) as served:
        guest = visit(served).open()
        guest.page.click("#run")
        guest.page.wait_for_selector(".sv-alert:not([hidden])")
        assert guest.page.inner_text(".sv-alert") == engine.refuse
        engine.refuse = ""
        guest.page.get_by_label("Seed", exact=True).fill("seven")
        guest.page.click("#run")
        guest.page.wait_for_function("document.querySelector('.sv-alert').innerText.includes('seed')")
        assert guest.ask("v.run.course.length") > 10  # the recording is still there
        guest.page.get_by_label("Seed", exact=True).fill("7")
        engine.fail_at = 4
        guest.run().finish()
        assert guest.page.inner_text(".sv-alert") == "The target returned NaN logits in step 4."
        assert guest.ask("v.run.course.length") > 3
        engine.fail_at = None
        guest.run().finish()
        assert not guest.page.is_visible(".sv-alert")
