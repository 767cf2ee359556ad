"""The tree of a pass in a real browser: an imported trace of two drafts, walked with the keyboard."""

import re

import pytest
from browser import Visit, serving
from fake_engine import FakeEngine, recorded
from test_trees import tree_draft
from toys import noisy, play, tiny

from specviz.drafts.merge import MergedDraft
from specviz.metrics import summarize
from specviz.trace import Piece, Trace
from specviz.ui.recordings import Recording

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]
WIDE = {"width": 1280, "height": 900}
LAPTOP = {"width": 1366, "height": 768}
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def served():
    with serving(FakeEngine(), recordings=[Recording("first", recorded(max_new_tokens=8), "a laptop")]) as page:
        yield page


@pytest.fixture
def file(tmp_path, request):
    """A trace of two drafts with trees of up to 64 nodes."""
    target = tiny()
    source = MergedDraft([tree_draft(noisy(target, scale), "4,3,1,1") for scale in (0.01, 0.03)])
    trace = play(target, source, tree="4,3,1,1", **getattr(request, "param", {"temperature": 1.0}))
    trace.pieces = {i: Piece(f" w{i}".encode()) for i in trace.pieces}
    path = tmp_path / "tree.json"
    path.write_text(trace.to_json(), encoding="utf-8")
    return path


def opened(browser, served, file, viewport):
    guest = Visit(browser, served.url)
    guest.page.set_viewport_size(viewport)
    guest.open()
    guest.page.set_input_files(".sv-opentrace", file)
    guest.until("v.run.start.source === 'imported'")
    guest.ask("v.transport.toEnd()")
    guest.page.wait_for_selector(".sv-tree:not([hidden])")
    return guest


def closed(guest):
    guest.close()
    assert (guest.errors, guest.dialogs, guest.outside()) == ([], [], [])


def test_a_pass_is_drawn_with_a_column_per_depth_and_every_node_says_who_and_what(browser, served, file):
    guest = opened(browser, served, file, WIDE)
    found = guest.page.eval_on_selector_all(
        ".sv-node",
        "(all) => all.map((n) => ({ left: n.offsetLeft, top: n.offsetTop, size: n.offsetHeight, "
        "who: n.querySelector('.who').textContent, tag: n.querySelector('.c').dataset.tag, title: n.title }))",
    )
    step = guest.ask("(({drafted, chips, numAccepted}) => ({drafted, chips, numAccepted}))(v.detail.tree.step)")
    assert len(found) == len(step["chips"]) > 30
    columns = sorted({node["left"] for node in found})
    depths = [node["depth"] for node in step["drafted"]]
    assert len(columns) >= max(depths)
    for node, place in zip(step["drafted"], found, strict=False):
        assert place["left"] == columns[node["depth"] - 1]
        assert place["who"] == "".join("AB"[i] for i in node.get("by", [0]))
        assert place["size"] >= 24
    places = [(node["left"], node["top"]) for node in found]
    assert len(set(places)) == len(places), "no node covers another"
    tried = [node["title"] for node in found if "trial" in node["title"]]
    assert tried
    assert all("p_target" in title and "q_draft" in title and "draw" in title for title in tried)
    assert guest.page.locator(".sv-treecanvas path.kept").count() == step["numAccepted"] + 1
    marks = {"accepted": "✓", "rejected": "✗", "untested": "·", "corrected": "→", "bonus": "+"}
    assert [node["tag"] for node in found] == [marks[chip["kind"]] for chip in step["chips"]]
    own = found[-1]["title"]
    assert own.startswith("the target's own")
    assert ("residual mass" in own) == (step["chips"][-1].get("mass", 1) < 1)
    closed(guest)


def test_the_page_tells_what_each_draft_gave_and_of_a_pass_its_nodes_path_and_tokens(browser, served, file):
    trace = Trace.from_json(file.read_text())
    guest = opened(browser, served, file, WIDE)
    rows = guest.page.eval_on_selector_all(
        ".sv-drafts:not([hidden]) tr", "(all) => all.map((row) => [...row.children].map((cell) => cell.innerText))"
    )
    assert rows[0] == ["draft", "proposed", "tested", "accepted", "unique"]
    assert [[int(cell) for cell in row[1:]] for row in rows[1:]] == [
        [one.proposed, one.tested, one.accepted, one.unique] for one in summarize(trace).proposers
    ]
    assert [row[0].split() for row in rows[1:]] == [["A", "NOISY", "0.01"], ["B", "NOISY", "0.03"]]
    assert guest.page.inner_text(".sv-drafts h3") == "What each draft gave"
    assert guest.page.locator(".sv-treehead .sv-badge").all_inner_texts() == ["A", "B", "T"]
    step = trace.steps("speculative")[guest.ask("v.detail.tree.step.i")]
    head = guest.page.inner_text(".sv-treehead")
    told = [int(number) for number in re.findall(r"(\d+) (?:node|token)", head)]
    assert told == [step.num_drafted, step.num_accepted, len(step.emitted)]
    guest.ask("v.transport.seek(0)")
    assert guest.page.locator(".sv-drafts").is_hidden()
    closed(guest)


BADGES = """(n) => {
  const drafts = document.querySelector(".sv").svView.drafts;
  const gave = { proposed: 1, tested: 1, accepted: 1, unique: 1 };
  const proposers = Array.from({ length: n }, (_, i) => ({ name: `d${i}`, ...gave }));
  drafts.show({ end: { summary: { proposers } }, duration: 0 }, 0);
  const badges = [...drafts.rows.querySelectorAll(".sv-badge"), document.querySelector(".sv-treehead .own")];
  return badges.map((badge) => {
    const style = getComputedStyle(badge);
    return [badge.innerText, ["borderRadius", "borderStyle", "borderWidth"].map((name) => style[name]).join("/")];
  });
}"""


def test_eight_drafts_and_the_target_have_a_letter_and_a_shape_each(browser, served, file):
    guest = opened(browser, served, file, WIDE)
    letters, shapes = zip(*guest.page.evaluate(BADGES, 8), strict=True)
    assert "".join(letters) == "ABCDEFGHT"
    assert len(set(shapes)) == 9
    closed(guest)


def test_for_a_run_of_trees_a_sentence_stands_in_the_place_of_the_theory(browser, served, file):
    guest = opened(browser, served, file, WIDE)
    theory = guest.page.locator("[data-key=theory]")
    theory.get_by_text("this run verified trees").wait_for()
    assert theory.locator(".sv-plotbox").is_hidden()
    guest.page.get_by_label("Prompt", exact=True).first.fill("a chain")
    guest.run().finish()
    theory.locator(".sv-plotbox .main-svg").first.wait_for()
    assert "verified trees" not in theory.inner_text()
    closed(guest)


def test_a_token_that_two_drafts_proposed_tells_both_its_trials(browser, served, file):
    steps = Trace.from_json(file.read_text()).steps("speculative")
    tried = [
        (i, trial.node, [one for one in site.trials if one.node == trial.node])
        for i, step in enumerate(steps)
        for site in step.sites
        for trial in site.trials
        if not trial.accepted and len(step.nodes[trial.node].proposers) == 2
    ]
    step, node, trials = next(found for found in tried if abs(found[2][0].row - found[2][1].row) > 0.01)
    guest = opened(browser, served, file, WIDE)
    shown = f"(v.detail.tree.draw(v.run, v.run.steps.speculative[{step}]), v.detail.tree.buttons[{node}])"
    title = guest.ask(f"{shown}.title")
    told = re.findall(
        r"trial \d+ for (NOISY [.\d]+), q_draft ([.\d]+),(?: left of p [.\d]+,)? draw ([.\d]+)", title
    )
    assert [name for name, _, _ in told] == [("NOISY 0.01", "NOISY 0.03")[one.proposer] for one in trials], title
    for one, (_, row, u) in zip(trials, told, strict=True):
        assert (float(row), float(u)) == pytest.approx((one.row, one.u), abs=6e-4)
    guest.page.locator(".sv-node").nth(node).click()
    assert "of the draft that was tried first here" in guest.page.inner_text(".sv-tops")
    closed(guest)


def test_arrow_keys_walk_the_tree_and_tell_each_nodes_story_while_the_race_stays(browser, served, file):
    guest = opened(browser, served, file, WIDE)
    time = guest.ask("v.transport.time")
    node = guest.page.locator(".sv-node").first
    node.focus()
    start = guest.ask("v.detailed.index")
    guest.page.keyboard.press("ArrowRight")
    child = guest.ask("v.detailed.chip.parent")
    assert child == start
    guest.page.keyboard.press("ArrowLeft")
    assert guest.ask("v.detailed.index") == start
    guest.page.keyboard.press("ArrowDown")
    assert guest.ask("v.detailed.chip.depth") == 1
    assert guest.ask("v.detailed.index") != start
    assert guest.ask("v.transport.time") == time
    assert guest.page.locator(".sv-node.chosen").count() == 1
    closed(guest)


def test_on_a_laptop_a_tree_of_64_nodes_is_legible_and_needs_no_sideways_scrolling(browser, served, tmp_path):
    target = tiny()
    trace = play(target, tree_draft(noisy(target, 0.01), "4,2,2,1,1,1"), tree="4,2,2,1,1", temperature=1.0)
    largest = max(len(step.nodes) for step in trace.steps("speculative"))
    assert 56 <= largest <= 64
    trace.pieces = {i: Piece(f" word{i}".encode()) for i in trace.pieces}
    path = tmp_path / "tree.json"
    path.write_text(trace.to_json(), encoding="utf-8")
    guest = opened(browser, served, path, LAPTOP)
    widths = guest.page.evaluate(
        "() => [document.documentElement.scrollWidth - innerWidth, "
        "...[...document.querySelectorAll('.sv-treescroll')].map((box) => box.scrollWidth - box.clientWidth)]"
    )
    assert max(widths) <= 0
    sizes = guest.page.eval_on_selector_all(
        ".sv-node .c", "(all) => all.map((n) => parseFloat(getComputedStyle(n).fontSize))"
    )
    assert len(sizes) >= 56
    assert min(sizes) >= 11
    closed(guest)


def test_the_controls_ask_for_a_tree_of_several_drafts_and_the_page_says_which_rule_is_on(browser, served):
    guest = Visit(browser, served.url).open()
    page = guest.page
    page.get_by_text("Token tree and several drafts").click()
    page.get_by_label("lookup", exact=True).check()
    page.locator("#tree textarea, #tree input").fill("3,2,1")
    page.get_by_label("naive, a teaching rule").check()
    guest.run(Prompt="a tree").finish()
    config = served.engine.configs[-1]
    assert (config.drafts, config.tree, config.rule) == (("lookup",), "3,2,1", "naive")
    assert "tree 3,2,1, naive rule, for teaching" in page.inner_text(".sv-runfacts")
    page.click("#share")
    page.wait_for_selector("dialog[open]")
    link = page.input_value(".sv-address")
    other = Visit(browser, served.url).open(link[link.index("?") :])
    other.page.wait_for_function("document.querySelector('#prompt textarea').value === 'a tree'")
    other.page.get_by_text("Token tree and several drafts").click()
    assert other.page.locator("#tree textarea, #tree input").input_value() == "3,2,1"
    assert other.page.get_by_label("lookup", exact=True).is_checked()
    assert other.page.get_by_label("naive, a teaching rule").is_checked()
    other.page.locator("#tree textarea, #tree input").fill("3,,1")
    num_runs = len(served.engine.configs)
    other.page.click("#run")
    other.page.wait_for_selector(".sv-alert:not([hidden])")
    assert "children per level such as 3,2,1,1" in other.page.inner_text(".sv-alert:not([hidden])")
    assert len(served.engine.configs) == num_runs
    for visitor in (guest, other):
        closed(visitor)


def test_on_a_phone_the_tree_scrolls_and_the_page_does_not(browser, served, file):
    guest = opened(browser, served, file, PHONE)
    widths = guest.page.evaluate(
        "() => { const box = document.querySelector('.sv-treescroll'); "
        "return [document.documentElement.scrollWidth, innerWidth, box.scrollWidth, box.clientWidth]; }"
    )
    assert widths[0] <= widths[1]
    assert widths[2] > widths[3]
    closed(guest)


@pytest.mark.parametrize("file", [{"temperature": 1.0, "rule": "naive"}], indirect=True)
def test_the_page_says_that_the_naive_rule_is_on(browser, served, file):
    guest = opened(browser, served, file, WIDE)
    assert "Naive rule" in guest.page.inner_text(".sv-treehead")
    closed(guest)
