"""References in a real browser: brought and taken back, where each copy stood, lit from both sides, not shared."""

import pytest
from browser import Visit, serving
from fake_engine import STORY, WRONG, FakeEngine, as_reference, recorded

from specviz.drafts.retrieval.reader import Document
from specviz.drafts.retrieval.sets import ReferenceSet, SetPrompt
from specviz.trace import Trace
from specviz.ui import library
from specviz.ui.recordings import Recording

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]

TEXT = "".join(STORY)
HOSTILE = "<img src=x onerror=alert(1)> ${alert(2)} {{alert(3)}} <script>alert(4)</script>"


SETS = (
    ReferenceSet(
        "lease",
        "A lease to try",
        (Document("lease.md", TEXT),),
        (
            SetPrompt("lease-1", "quote", "Quote the first word.", True),
            SetPrompt("lease-2", "edit", "Here is a word: tenant. Repeat it.", False),
            SetPrompt("lease-3", "quote", "Repeat it.\n\nThe tenant pays, and has to pay for ever.", False),
            SetPrompt("lease-4", "quote", "Repeat it.\n\nNotices.", False),
        ),
    ),
)


@pytest.fixture(scope="module")
def served():
    patch = pytest.MonkeyPatch()
    patch.setattr(library, "load_sets", lambda: SETS)
    notes = as_reference(Document("notes.txt", TEXT))
    first = recorded(FakeEngine(references=[notes]), max_new_tokens=48).without_texts()
    with serving(FakeEngine(agree=0.9), recordings=[Recording("first", first)]) as page:
        yield page
    patch.undo()


@pytest.fixture
def visit(browser, served):
    visits = []

    def make(**context):
        visits.append(Visit(browser, served.url, **context))
        return visits[-1].open()

    yield make
    for one in visits:
        one.close()
        assert (one.errors, one.dialogs, one.outside()) == ([], [], [])


def bring(guest, **files):
    """Upload texts by name (a `_` is a dot) and wait until they are on the shelf."""
    named = [(name.replace("_", "."), data) for name, data in files.items()]
    upload(guest, *named)
    for name, _ in named:
        guest.page.locator(".sv-docname", has_text=name).wait_for()
    return guest


def upload(guest, *files):
    payload = [
        {"name": name, "mimeType": "text/plain", "buffer": data if isinstance(data, bytes) else data.encode()}
        for name, data in files
    ]
    guest.page.set_input_files(".sv-library input[type=file]", files=payload)


def docs(guest):
    return guest.page.locator(".sv-docname").all_inner_texts()


def copied(guest):
    """An accepted chip that was copied, with a match of its own before it."""
    guest.ask(
        "[...v.lanes.speculative.stream.querySelectorAll('.c.accepted')]"
        ".find((n) => n.svToken.chip.o?.[1] > 5 && n.svToken.chip.o[2] > 1).dataset.test = 'copied'"
    )
    return guest.page.locator("[data-test=copied]")


# -- bringing and taking back --------------------------------------------------------------------


def test_texts_are_pasted_uploaded_and_removed_and_bad_ones_are_a_sentence(visit):
    guest = visit()
    page = guest.page
    page.get_by_text("References: texts to copy from").click()
    page.get_by_text("Paste text", exact=True).click()
    page.get_by_label("Text to copy from").fill("pasted words")
    page.locator(".sv-pasting").get_by_text("Add", exact=True).click()
    page.locator(".sv-docname", has_text="pasted text").wait_for()
    upload(
        guest, ("good.txt", "good"), ("bad.bin", b"\0\xff" * 20), ("empty.md", b""), ("big.txt", b"x" * (6 << 20))
    )
    page.locator(".sv-docname", has_text="good.txt").wait_for()
    page.wait_for_function("document.querySelector('.sv-refalert').textContent.includes('big.txt')")
    said = page.inner_text(".sv-refalert")
    assert all(name in said for name in ("bad.bin", "empty.md", "big.txt"))
    assert docs(guest) == ["pasted text", "good.txt"]
    page.get_by_label("Remove pasted text").click()
    page.wait_for_function("document.querySelectorAll('.sv-docs li').length === 1")
    assert docs(guest) == ["good.txt"]
    assert page.evaluate("document.activeElement.closest('.sv-library') !== null"), "the focus is not lost"


def test_hostile_names_and_texts_are_shown_and_do_nothing(visit):
    guest = visit()
    upload(guest, ("<img src=x onerror=alert(5)>.txt", HOSTILE + TEXT))
    guest.page.locator(".sv-docname", has_text="onerror=alert(5)").wait_for()
    guest.run(Prompt=HOSTILE).finish()
    guest.page.locator(".sv-refbody .r").first.wait_for()
    guest.page.wait_for_function("document.querySelector('.sv-refbody').textContent.includes('onerror=alert(1)')")
    assert HOSTILE in guest.page.inner_text(".sv-refbody")
    assert guest.page.locator(".sv-refs img, .sv-library img, .sv-refs script, .sv-library script").count() == 0


def test_a_reference_goes_into_the_prompt_where_it_is_ticked(visit):
    guest = bring(visit(), a_txt=TEXT, b_txt="other words")
    guest.page.locator(".sv-docs li").nth(1).get_by_label("in the prompt").check()
    guest.page.evaluate("document.querySelector('.sv-library').svLibrary.busy")
    guest.run().finish()
    kept = Trace.from_json(guest.ask("v.ask.export({ run: v.run.id, what: 'trace' })")["text"])
    assert kept.config["references"] == ["a.txt", "b.txt"]
    assert kept.config["prompt_references"] == ["b.txt"]


def test_what_a_visitor_brings_is_seen_by_nobody_else_and_gone_when_they_leave(served, visit, browser):
    libraries = next(fn.fn.__self__ for fn in served.app.fns.values() if getattr(fn.fn, "__name__", "") == "enter")
    ann = bring(Visit(browser, served.url).open(), secret_txt=TEXT).run().finish()
    bob = visit()
    bob.run().finish()
    assert docs(bob) == []
    assert bob.ask("v.run.start.references") == []
    ids = {visitor.session for visitor in libraries._visitors.values() if visitor.shelf.documents}
    assert len(ids) == 1
    run = ann.ask("v.run.id")
    assert bob.page.evaluate(
        "(run) => document.querySelector('.sv').svView.ask.reference({run, source: 'secret.txt', from: 0, to: 3})",
        run,
    )["tokens"], "who knows a run's id, which only its page does, may look"
    ann.close()
    for _ in range(100):
        if not any(visitor.session in ids for visitor in libraries._visitors.values()):
            break
        bob.page.wait_for_timeout(100)
    assert libraries.shelf(next(iter(ids))) is None
    assert not bob.page.evaluate(
        "(run) => document.querySelector('.sv').svView.ask.reference({run, source: 'secret.txt', from: 0, to: 3})",
        run,
    )


def test_a_set_brings_its_texts_and_its_prompts_fill_the_prompt(visit):
    guest = bring(visit(), mine_txt="my own words")
    page = guest.page
    page.get_by_text("References: texts to copy from").click()
    page.get_by_text("A lease to try", exact=True).click()
    page.locator(".sv-docname", has_text="lease.md").wait_for()
    page.wait_for_function("document.querySelector('#prompt textarea').value === 'Quote the first word.'")
    page.wait_for_function("document.querySelector('.sv-docs input').checked")
    assert docs(guest) == ["lease.md"]
    labels = page.locator(".sv-setprompts button").all_inner_texts()
    assert labels[2:] == ["Repeat it. “The tenant pays, and has to…”", "Repeat it. “Notices.”"], "told apart"
    page.get_by_text("Here is a word: tenant. Repeat it.", exact=True).click()
    page.wait_for_function("!document.querySelector('.sv-docs input').checked")
    guest.run().finish()
    assert guest.ask("v.run.start.config.prompt") == "Here is a word: tenant. Repeat it."


# -- where copies came from ----------------------------------------------------------------------


def test_a_token_lights_its_place_and_a_place_lights_its_tokens(visit):
    guest = bring(visit(), story_txt=TEXT).run().finish()
    page = guest.page
    page.locator(".sv-refbody .r").nth(20).wait_for()
    token = copied(guest)
    token.click()
    lit = page.locator(".sv-refbody .r.lit")
    lit.wait_for()
    offset = int(lit.get_attribute("data-i"))
    shown = "(n, b) => n.top >= b.top && n.bottom <= b.bottom"
    assert guest.ask(
        f"(({shown})(v.references.text.body.querySelector('.lit').getBoundingClientRect(),"
        " v.references.text.body.getBoundingClientRect()))"
    ), "its place is in sight"
    assert lit.text_content() == guest.ask("v.pinned.chip.o && v.run.pieces.get(v.pinned.chip.id).t")
    assert offset == guest.ask("v.pinned.chip.o[1]")
    matched = page.locator(".sv-refbody .r.matched").all_text_contents()
    assert len(matched) == guest.ask("v.pinned.chip.o[2]")
    story = page.inner_text(".sv-origin")
    assert f"Copied from story.txt, token {offset + 1}," in story
    assert "".join(matched).strip() in story
    page.keyboard.press("Escape")
    page.locator(".sv-headline").hover()
    assert page.locator(".sv-refbody .lit").count() == 0
    page.locator(f".sv-refbody .r[data-i='{offset}']").hover()
    assert page.locator(".sv-lane.speculative .c.copied").count() == guest.ask(
        f"v.run.copies.at('story.txt', {offset}).length"
    )
    page.locator(".sv-headline").hover()
    assert page.locator(".sv-lane.speculative .c.copied").count() == 0


def test_the_same_by_keyboard(visit):
    guest = bring(visit(), story_txt=TEXT).run().finish()
    page = guest.page
    page.locator(".sv-refbody .r").nth(20).wait_for()
    before = guest.ask("v.transport.time")
    page.focus(".sv-refbody")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    cursor = page.locator(".sv-refbody .r.cursor")
    offset = int(cursor.get_attribute("data-i"))
    assert page.locator(".sv-lane.speculative .c.copied").count() >= 1
    page.keyboard.press("Enter")
    assert guest.ask("v.pinned.chip.o[1]") == offset
    assert guest.ask("v.transport.time") == before, "the arrows of the pane do not move the race"
    page.keyboard.press("ArrowLeft")
    assert int(cursor.get_attribute("data-i")) < offset


def test_the_bar_and_the_counts_tell_what_was_used_by_then(visit):
    guest = bring(visit(), story_txt=TEXT).run().finish()
    page = guest.page
    page.wait_for_selector(".sv-refrow")
    offsets = guest.ask(
        "[...new Set(v.run.steps.speculative.flatMap((s) => s.chips)"
        ".filter((c) => c.o && c.kind === 'accepted').map((c) => c.o[1]))].length"
    )
    size = guest.ask("v.run.start.references[0].num_tokens")
    assert page.inner_text(".sv-refcount") == f"{offsets} of {size} tokens used"
    assert page.locator(".sv-refbody .r.used").count() == offsets
    assert "linear-gradient" in page.locator(".sv-refbar").get_attribute("style")
    accepted = guest.ask("v.run.end.summary.copied[0].accepted")
    assert f"{accepted} from story.txt" in page.inner_text(".sv-refsum")
    guest.ask("v.transport.seek(0)")
    page.wait_for_function("document.querySelector('.sv-refcount').textContent.startsWith('0 of')")
    assert page.locator(".sv-refbody .r.used").count() == 0
    guest.ask("v.transport.toEnd()")
    page.wait_for_function(f"document.querySelector('.sv-refcount').textContent.startsWith('{offsets} of')")


def test_where_no_copy_was_kept_the_pane_is_one_sentence(visit, tmp_path):
    words = as_reference(Document("prompt", "".join(WRONG)))
    trace = recorded(FakeEngine(references=[words], verdicts="rejected"), max_new_tokens=12)
    trace.references = []
    file = tmp_path / "trace.json"
    file.write_text(trace.to_json(), encoding="utf-8")
    guest = visit()
    guest.page.set_input_files(".sv-opentrace", file)
    guest.until("v.run.start.source === 'imported'")
    guest.ask("v.transport.toEnd()")
    assert guest.ask("v.run.copies.sources") == ["prompt"]
    told = guest.page.inner_text(".sv-refs").split("\n")
    assert list(filter(None, told)) == ["Where copies came from", "No copy accepted so far."]


def test_a_long_reference_is_shown_in_parts_and_a_token_takes_you_to_its_place(visit):
    filler = " ".join(f"filler{number}" for number in range(6000))
    guest = bring(visit(), long_txt=f"{filler} {TEXT}").run().finish()
    page = guest.page
    page.locator(".sv-refbar").click(
        position={"x": 1, "y": 3}
    )  # by itself it opens where it was first copied from
    page.wait_for_function("document.querySelector('.sv-refwhere').textContent.startsWith('Tokens 1 to ')")
    assert page.locator(".sv-refbody .r").count() <= 1500
    assert page.get_by_text("Earlier", exact=True).is_disabled()
    page.get_by_text("Later", exact=True).click()
    page.wait_for_function("Number(document.querySelector('.sv-refbody .r').dataset.i) > 0")
    page.get_by_text("Earlier", exact=True).click()
    page.wait_for_function("document.querySelector('.sv-refbody .r').dataset.i === '0'")
    copied(guest).click()
    page.locator(".sv-refbody .r.lit").wait_for()
    assert int(page.locator(".sv-refbody .r.lit").get_attribute("data-i")) >= 6000


def test_a_recording_without_texts_shows_its_excerpts_and_hovering_asks_nothing(visit):
    guest = visit()
    page = guest.page
    guest.ask("v.transport.toEnd()")
    page.locator(".sv-refbody .r").first.wait_for()
    page.wait_for_function("document.querySelector('.sv-refwhere').textContent.startsWith('Only what was copied')")
    page.wait_for_timeout(300)
    asked = len(guest.requests)
    copied(guest).hover()
    page.locator(".sv-refbody .r.lit").wait_for()
    assert page.locator(".sv-refbody .gap").count() >= 1
    assert len(guest.requests) == asked


def test_a_run_made_with_other_references_is_told_from_one_made_with_these(visit):
    guest = bring(visit(), story_txt=TEXT).run().finish()
    stale = guest.page.locator(".sv-stale")
    assert not stale.is_visible()
    bring(guest, other_txt="other words")
    guest.page.wait_for_selector(".sv-stale:visible")
    assert stale.inner_text().startswith("Made with older settings: Reference list has been changed since.")
    guest.page.get_by_label("Remove other.txt").click()
    guest.page.wait_for_selector(".sv-stale", state="hidden")
    guest.page.get_by_label("in the prompt").check()
    guest.page.wait_for_selector(".sv-stale:visible")
    guest.run().finish()
    assert not stale.is_visible()


# -- kept ----------------------------------------------------------------------------------------


def test_a_saved_trace_holds_the_references_only_if_that_is_ticked(visit):
    guest = bring(visit(), story_txt=TEXT).run().finish()

    def saved():
        with guest.page.expect_download() as download:
            guest.page.get_by_text("Save trace", exact=True).click()
        with open(download.value.path(), "rb") as file:
            return Trace.from_json(file.read())

    assert [one.text for one in saved().references] == [""]
    guest.page.get_by_label("Include references in the saved trace").check()
    assert [one.text for one in saved().references] == [TEXT]


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen(visit, width):
    guest = bring(visit(), story_txt=TEXT).run().finish()
    guest.page.set_viewport_size({"width": width, "height": 844})
    guest.page.wait_for_timeout(300)
    assert guest.page.evaluate("document.documentElement.scrollWidth") <= width
