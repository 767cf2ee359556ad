"""Files that people bring: what is read, what is refused in one sentence, the corpus on disk, drafts by name."""

import dataclasses
import io
import itertools
import json
import os
import zlib
from types import SimpleNamespace

import pypdf
import pytest
import toys
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject
from tokenizer_makers import byte_level, metaspace

from specviz import run
from specviz.config import MAX_REFERENCES, RetrievalSettings, RunConfig
from specviz.drafts.naming import Makers, make_draft
from specviz.drafts.retrieval import corpus, library, reader, sets
from specviz.drafts.retrieval.fixed import FixedTexts
from specviz.drafts.retrieval.library import Shelf
from specviz.drafts.retrieval.markup import html_text
from specviz.drafts.retrieval.reader import Document, read_documents, to_text
from specviz.errors import ConfigError, ContextError, DocumentError, SpecvizError
from specviz.metrics import audit, summarize
from specviz.trace import Trace

TOKENIZER = byte_level()


def pdf(text="", password=None):
    """A PDF of one page; without a text it holds none, like a scan."""
    writer = pypdf.PdfWriter()
    page = writer.add_blank_page(300, 300)
    if text:
        font = DictionaryObject(
            {NameObject("/Type"): NameObject("/Font"), NameObject("/Subtype"): NameObject("/Type1")}
            | {NameObject("/BaseFont"): NameObject("/Helvetica")}
        )
        fonts = DictionaryObject({NameObject("/F1"): font})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        stream = DecodedStreamObject()
        stream.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode())
        page[NameObject("/Contents")] = stream
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def aes_pdf():
    """A PDF that says it is encrypted with AES-256 (ISO 32000-2, 7.6.4); nobody has its keys."""
    keys = b"".join(
        b"/%s <%s>" % (key, b"5A" * size) for key, size in ((b"U", 48), (b"O", 48), (b"UE", 32), (b"OE", 32))
    )
    filters = b"/CF <</StdCF <</CFM /AESV3 /AuthEvent /DocOpen /Length 32>>>> /StmF /StdCF /StrF /StdCF"
    objects = [
        b"<</Type /Catalog /Pages 2 0 R>>",
        b"<</Type /Pages /Kids [3 0 R] /Count 1>>",
        b"<</Type /Page /Parent 2 0 R /MediaBox [0 0 9 9]>>",
        b"<</Filter /Standard /V 5 /R 6 /Length 256 /P -3904 /Perms <%s> %s %s>>" % (b"5A" * 16, keys, filters),
    ]
    body, places = b"%PDF-2.0\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj %s endobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    trailer = b"trailer <</Size %d /Root 1 0 R /Encrypt 4 0 R /ID [<00> <00>]>>\n" % (len(objects) + 1)
    return body + head + table + trailer + b"startxref\n%d\n%%%%EOF\n" % len(body)


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.txt", b"one\r\ntwo", "one\ntwo"),
        ("a.md", b"\xef\xbb\xbf# Title", "# Title"),
        ("a.txt", "é".encode("utf-16"), "é"),
        ("a.py", b"def f():\n\treturn 1\n", "def f():\n\treturn 1\n"),
        ("a.txt", "страница".encode(), "страница"),
        ("a.html", b"<title>no</title><p>a <b>b</b>c</p><script>x()</script><p>&lt;d&gt;", "a bc\n<d>\n"),
        ("a.pdf", pdf("Hello reference"), "Hello reference"),
        ("no suffix", pdf("Hello reference"), "Hello reference"),
    ],
    ids=str,
)
def test_what_can_be_read(name, data, text):
    assert to_text(name, data).strip("\n") == text.strip("\n")


def test_html_keeps_what_a_reader_sees_line_by_line():
    page = "<head><style>p{}</style></head><h1>T</h1><ul><li>one<li>two</ul><pre>x = 1\n  y</pre><p>a<br>b  c"
    assert html_text(page) == "T\none\ntwo\nx = 1\n  y\na\nb c\n"
    assert html_text("<p>unclosed <script>alert(1)") == "unclosed\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("<!DOCTYPE html><!-- a > b --><p title='it > is'>c</p>", "c"),
        ("a < b and 1<2 <3 &amp;&lt;tag&gt; &#x41;&nosuch;", "a < b and 1<2 <3 &<tag> A&nosuch;"),
        ("<p title=it's>kept</p><p>kept's</p>", "kept\nkept's"),
        ("<script>if (a</b/.test(c)) x='</p>'</script>seen", "seen"),
        ("<STYLE>p{}</STYLE ><B>b</B>o<i>l</i>d", "bold"),
        ("</p></div>a<br/>b<hr>c", "a\nb\nc"),
        ("one </ > two <!> three <?php x ?> four", "one two three four"),
        ("a<p", "a"),
        ("a<!-- never closed", "a"),
        (f"&#{'9' * 9999}; is no character", f"&#{'9' * 9999}; is no character"),
    ],
    ids=lambda value: value[:30],
)
def test_html_of_every_kind_gives_its_text(source, text):
    assert html_text(source) == text + "\n"


@pytest.mark.parametrize(
    "part", ["<a ", "<!--", "</", "<a b='", "<p>", "<script>", "&#", "<?", '<a ="', "<a = ", "<"]
)
def test_a_page_of_unfinished_markup_is_read_in_time_that_grows_with_its_length(part):
    html_text(part * (10**6 // len(part)))


BAD_FILES = {
    "zero.txt": (b"", "empty"),
    "blank.txt": (b" \n\t ", "no text"),
    "image.png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff\xfe", "binary"),
    "data.bin": (bytes(range(32)) * 20, "binary"),
    "utf16.txt": ("caf\xe9".encode("utf-16-le"), "binary"),
    "half.txt": (b"\xff\xfea", "UTF-16|UTF-8"),
    "latin.txt": ("caf\xe9 au lait".encode("latin-1"), "UTF-8"),
    "scan.pdf": (pdf(), "images"),
    "locked.pdf": (pdf("secret", "pw"), "encrypted"),
    "aes.pdf": (aes_pdf(), "encrypted"),
    "torn.pdf": (pdf("Hello reference")[:200], "damaged|images"),
    "empty.html": (b"<html><script>x</script></html>", "no text"),
    "huge.txt": (b"x" * (5 * 2**20 + 1), "5 MB"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_gives_one_sentence_and_the_rest_keeps_working(tmp_path, name):
    data, why = BAD_FILES[name]
    (tmp_path / name).write_bytes(data)
    (tmp_path / "good.txt").write_text("good words")
    documents, complaints = read_documents([tmp_path / name, tmp_path / "good.txt"])
    assert documents == [Document("good.txt", "good words")]
    (sentence,) = complaints
    assert sentence.startswith(name)
    assert sentence.endswith(".")
    assert any(part in sentence for part in why.split("|"))
    with pytest.raises(DocumentError, match=name):
        Shelf.read([tmp_path / name])


def test_missing_files_folders_and_what_goes_beyond_the_limits(tmp_path):
    documents, complaints = read_documents([tmp_path / "absent.txt", tmp_path])
    assert documents == []
    assert [sentence.split()[0] for sentence in complaints] == ["absent.txt", tmp_path.name]
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text(folder * 60)
    paths = [tmp_path / "a" / "x.txt", tmp_path / "b" / "x.txt"]
    assert [d.name for d in read_documents(paths)[0]] == ["x.txt", "x.txt (2)"]
    (tmp_path / "prompt").write_text("a file by the name of a source that is none")
    assert [d.name for d in read_documents([tmp_path / "prompt"])[0]] == ["prompt (2)"]
    documents, complaints = read_documents(paths, max_bytes=100)
    assert len(documents) == len(complaints) == 1
    with pytest.raises(ConfigError, match="at most 10"):
        RunConfig(references=("a.txt",) * (MAX_REFERENCES + 1))


def test_a_page_that_takes_too_long_is_left_out_however_deep_it_is_in_forms(monkeypatch):
    seconds = itertools.count()
    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    assert "Hello" in to_text("short.pdf", pdf("Hello"))
    for data in (pdf("a) Tj (" * 40), nested_forms(8)):
        with pytest.raises(DocumentError, match=r"long\.pdf takes longer than 30 s"):
            to_text("long.pdf", data)
    assert next(seconds) < 400, "and no more is read of it"


def nested_forms(depth):
    """A page that draws a form that draws a form twice, and so on."""
    writer = pypdf.PdfWriter()
    inner = None
    for _ in range(depth):
        form = DecodedStreamObject()
        form.set_data(b"BT (a) Tj ET " + b"/X Do " * (2 if inner else 0))
        form[NameObject("/Type")], form[NameObject("/Subtype")] = NameObject("/XObject"), NameObject("/Form")
        if inner:
            forms = DictionaryObject({NameObject("/X"): inner})
            form[NameObject("/Resources")] = DictionaryObject({NameObject("/XObject"): forms})
        inner = writer._add_object(form)
    page = writer.add_blank_page(300, 300)
    page[NameObject("/Resources")] = form[NameObject("/Resources")]
    page[NameObject("/Contents")] = form
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def test_names_that_are_no_text_or_none_at_all(tmp_path):
    strange = tmp_path / os.fsdecode(b"\xff.txt")
    strange.write_text("good words")
    (document,), complaints = read_documents([strange, "", "a\0b.txt", os.fsdecode(b"\xff\xff.txt")])
    assert document.name == "?.txt"
    assert [sentence.split(" cannot")[0] for sentence in complaints] == [
        "a file without a name",
        "a\0b.txt",
        "??.txt",
    ]
    (tmp_path / os.fsdecode(b"\xfe.txt")).write_text("more words")
    corpus.build(tmp_path, tmp_path / "c.sv", TOKENIZER)
    assert corpus.open_corpus(tmp_path / "c.sv", TOKENIZER).names == ("c.sv/?.txt", "c.sv/?.txt (2)")
    with pytest.raises(DocumentError, match="null byte"):
        corpus.open_corpus("a\0.sv", TOKENIZER)


def test_too_many_tokens_leave_a_document_out(monkeypatch):
    monkeypatch.setattr(library, "MAX_TOKENS", 10)
    made = library.index_documents(
        [Document("a", "12345"), Document("b", "123456"), Document("c", "12345")], TOKENIZER
    )
    assert [d.name for d in made.documents] == ["a", "c"]
    assert made.complaints == ("b goes beyond 10 tokens of references; it was left out.",)


def test_a_library_knows_the_character_of_each_token_and_keeps_texts_only_if_asked():
    made = library.index_documents([Document("a", "aéb"), Document("b", "xy")], TOKENIZER)
    trace = Trace(references=made.references)
    assert (trace.references[0].text, trace.references[0].starts) == ("aéb", (0, 1, 1, 2))
    assert Trace.from_json(trace.to_json()).references == made.references
    bare = trace.without_texts()
    assert [(r.name, r.num_tokens, r.text, r.starts) for r in bare.references] == [
        ("a", 4, "", ()),
        ("b", 2, "", ()),
    ]
    assert "a\\u00e9b" in trace.to_json()
    assert "a\\u00e9b" not in bare.to_json()


def test_a_shelf_indexes_once_for_each_tokenizer_and_refuses_where_nothing_is_left(monkeypatch):
    shelf = Shelf([Document("a", "12345")])
    assert shelf.library(TOKENIZER) is shelf.library(TOKENIZER)
    assert shelf.library(TOKENIZER) is not shelf.library(metaspace())
    monkeypatch.setattr(library, "MAX_TOKENS", 4)
    with pytest.raises(DocumentError, match="a goes beyond 4 tokens"):
        Shelf([Document("a", "12345")]).library(TOKENIZER)


def test_documents_that_are_to_stand_in_the_prompt_do_in_their_order():
    documents = [Document("a", "\none\n", True), Document("b", "two"), Document("c", "three ", True)]
    made = library.index_documents(documents, TOKENIZER)
    assert made.with_prompt("ask ") == "one\n\nthree\n\nask "
    assert made.num_in_prompt == 5 + 6
    assert library.index_documents([Document("b", "two")], TOKENIZER).with_prompt("ask") == "ask"


# -- bundled sets --------------------------------------------------------------------------------

SET = {
    "name": "lease",
    "title": "A lease",
    "files": ["b.md", "a.md"],
    "prompts": [{"id": "lease-1", "category": "quote", "prompt": "Quote it.", "in_prompt": True}],
}


def set_in(folder, **changes):
    (folder / "lease").mkdir(exist_ok=True)
    for name in ("a.md", "b.md"):
        (folder / "lease" / name).write_text(f"text of {name}")
    (folder / "lease" / "set.json").write_text(json.dumps({**SET, **changes}))
    return folder


def test_a_set_is_its_texts_in_their_order_and_its_prompts(tmp_path):
    (one,) = sets.load_sets(set_in(tmp_path))
    assert (one.name, one.title) == ("lease", "A lease")
    assert one.documents == (Document("b.md", "text of b.md"), Document("a.md", "text of a.md"))
    assert one.prompts == (sets.SetPrompt("lease-1", "quote", "Quote it.", True),)
    assert sets.load_sets(tmp_path / "absent") == ()


@pytest.mark.parametrize(
    "changes",
    [{"files": ["absent.md"]}, {"files": None}, {"prompts": [{"id": "x"}]}, {"prompts": [5]}, {"prompts": None}],
    ids=str,
)
def test_a_damaged_set_is_refused_by_name(tmp_path, changes):
    with pytest.raises(DocumentError, match="set lease"):
        sets.load_sets(set_in(tmp_path, **changes))


def test_the_sets_that_come_with_the_project_can_be_read_and_have_prompts_of_their_own():
    found = sets.load_sets()
    prompts = [prompt for one in found for prompt in one.prompts]
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert {prompt.category for prompt in prompts} <= {"summarise", "quote", "edit", "ask"}
    assert all(one.documents and one.prompts and one.title for one in found)


# -- corpus --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    texts = tmp_path / "texts"
    (texts / "deep").mkdir(parents=True)
    (texts / "a.txt").write_text("the quick brown fox jumps")
    (texts / "deep" / "b.md").write_text("the quick red hen")
    (texts / "broken.bin").write_bytes(b"\0\xff" * 50)
    (texts / ".hidden").write_text("unseen")
    return texts


@pytest.fixture
def built(folder):
    corpus.build(folder, folder / "corpus.sv", TOKENIZER)
    return folder / "corpus.sv"


def ids(text):
    return TOKENIZER(text)["input_ids"]


def test_a_corpus_finds_what_an_index_in_memory_finds(folder):
    made = corpus.build(folder, folder / "corpus.sv", TOKENIZER)
    assert (made.num_texts, made.num_tokens) == (2, 42)
    assert [sentence.split()[0] for sentence in made.complaints] == ["broken.bin"]
    texts = {"a.txt": ids("the quick brown fox jumps"), "deep/b.md": ids("the quick red hen")}
    opened, memory = corpus.open_corpus(folder / "corpus.sv", TOKENIZER), FixedTexts.of(texts)
    for text in ("a quick ", "the red h", "zzz", "the quick brown"):
        ours, theirs = opened.match(ids(text), 2), memory.match(ids(text), 2)
        assert (ours is None) == (theirs is None)
        if ours:
            assert (ours.length, ours.places.tolist()) == (theirs.length, theirs.places.tolist())
            assert opened.read(ours.places).tolist() == memory.read(theirs.places).tolist()
            name, offset = memory.locate(int(theirs.places[-1]))
            assert opened.locate(int(ours.places[-1])) == (f"corpus.sv/{name}", offset)


def test_a_corpus_is_written_whole_or_not_at_all(folder, tmp_path):
    corpus.build(folder, tmp_path / "c.sv", TOKENIZER)
    first = (tmp_path / "c.sv").read_bytes()
    corpus.build(folder, tmp_path / "c.sv", TOKENIZER)
    assert (tmp_path / "c.sv").read_bytes() == first
    with pytest.raises(DocumentError, match="cannot be written"):
        corpus.build(folder, tmp_path / "no" / "c.sv", TOKENIZER)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.sv", "texts"]
    longest = tmp_path / f"{'x' * 252}.sv"
    corpus.build(folder, longest, TOKENIZER)
    assert longest.read_bytes() == first
    with pytest.raises(DocumentError, match="cannot be written"):
        corpus.build(folder, tmp_path / f"{'x' * 253}.sv", TOKENIZER)


def test_a_folder_without_texts_is_refused(tmp_path):
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DocumentError):
            corpus.build(place, tmp_path / "c.sv", TOKENIZER)


def forged(data, **changes):
    """The same file with another header and a sum that fits."""
    size = int.from_bytes(data[12:16], "little")
    header = json.dumps({**json.loads(data[16 : 16 + size]), **changes}).encode()
    body = data[:12] + len(header).to_bytes(4, "little") + header + data[16 + size : -4]
    return body + zlib.crc32(body).to_bytes(4, "little")


def far_places(data):
    """A sum that fits, but a place beyond the text."""
    body = data[:-8] + b"\xff\xff\xff\x7f"
    return body + zlib.crc32(body).to_bytes(4, "little")


DAMAGE = {
    "empty": (lambda _: b"", "not a corpus"),
    "foreign": (lambda _: b"%PDF-1.4 and so on, for a while", "not a corpus.* index FOLDER --out FILE"),
    "a trace": (lambda _: b'{"format":"specviz-trace"}', "not a corpus"),
    "cut in the header": (lambda data: data[:20], "damaged"),
    "cut in the body": (lambda data: data[:-30], "damaged"),
    "longer": (lambda data: data + b"\0", "damaged"),
    "one bit": (lambda data: data[:-60] + bytes([data[-60] ^ 1]) + data[-59:], "damaged"),
    "another version": (lambda data: data[:8] + b"\x09\0\0\0" + data[12:], "version 9"),
    "a header of 4 GB": (lambda data: data[:12] + b"\xff\xff\xff\xff" + data[16:], "damaged"),
    "a header that is no JSON": (lambda data: data[:16] + b"[[" + data[18:], "damaged"),
    "billions of tokens": (lambda data: forged(data, lengths=[10**12, 1]), "damaged"),
    "negative tokens": (lambda data: forged(data, lengths=[-1, 43]), "damaged"),
    "tokens that are none": (lambda data: forged(data, lengths=[True, "a"]), "damaged"),
    "fewer names": (lambda data: forged(data, names=["a"]), "damaged"),
    "names that are none": (lambda data: forged(data, names=[1, 2]), "damaged"),
    "no list": (lambda data: forged(data, lengths=None, names=None), "damaged"),
    "more places than tokens": (lambda data: forged(data, num_places=10**7), "damaged"),
    "no places": (lambda data: forged(data, num_places=None), "damaged"),
    "places beyond the text": (far_places, "damaged"),
    "another tokenizer": (lambda data: forged(data, tokenizer="0" * 64), "tokenizer"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_wrong_or_damaged_corpus_is_refused_in_one_sentence(built, kind):
    damage, why = DAMAGE[kind]
    built.write_bytes(damage(built.read_bytes()))
    with pytest.raises(DocumentError, match=why) as refused:
        corpus.open_corpus(built, TOKENIZER)
    assert str(refused.value).count("\n") == 0


def test_a_corpus_of_another_tokenizer_or_none_at_all(built):
    with pytest.raises(DocumentError, match="another model's tokenizer"):
        corpus.open_corpus(built, metaspace())
    with pytest.raises(DocumentError, match="cannot be opened"):
        corpus.open_corpus(built.with_name("absent.sv"), TOKENIZER)


# -- drafts by name ------------------------------------------------------------------------------


@pytest.fixture
def makers(tiny):
    return Makers(
        target=toys.loaded(tiny.model, "TINY", tokenizer=TOKENIZER),
        settings=RetrievalSettings(),
        references=FixedTexts.of({"a": [1, 2, 3]}),
        load=lambda name: toys.loaded(tiny.model, name),
    )


def test_names_make_drafts(makers, built):
    names = {"lookup": ("lookup",), "references": ("references",), str(built): ("corpus.sv",), "m": ("m",)}
    names[f"cascade:references,{built},m"] = ("references", "corpus.sv", "m")
    for name, proposers in names.items():
        assert make_draft(name, makers).names == proposers


@pytest.mark.parametrize("name", ["cascade:", "cascade:lookup", "cascade:lookup,", "cascade:none,lookup"])
def test_a_cascade_of_fewer_than_two_is_refused(makers, name):
    with pytest.raises(ConfigError, match="names no cascade"):
        make_draft(name, makers)


def test_where_nothing_can_be_read_nothing_is_said_to_go_on_without_it(tmp_path):
    with pytest.raises(DocumentError, match=r"^absent cannot be opened \(No such file or directory\)\.$"):
        Shelf.read([tmp_path / "absent"])
    with pytest.raises(DocumentError, match=r"is a folder, of which `index` makes a corpus\.$"):
        Shelf.read([tmp_path])


def test_a_cascade_inside_a_cascade_is_refused(makers):
    with pytest.raises(ConfigError, match="inside a cascade; write all of its drafts in one list"):
        make_draft("cascade:lookup,cascade:references,m", makers)


def test_references_without_any_are_refused(makers):
    with pytest.raises(ConfigError, match="at least one reference"):
        make_draft("references", dataclasses.replace(makers, references=None))


def test_a_run_reads_its_references_and_its_trace_tells_no_paths(tiny, tmp_path, monkeypatch):
    target = toys.loaded(tiny.model, "TINY", tokenizer=TOKENIZER)
    monkeypatch.setattr(run, "_load", lambda *_: target)
    monkeypatch.setattr(run, "require_known", lambda _: None)
    path = tmp_path / "notes.txt"
    path.write_text("ABCABCABC")
    config = RunConfig(
        prompt="AB", target="TINY", raw=True, references=(str(path), "absent.txt"), max_new_tokens=8, seed=1
    )
    prepared = run.prepare(config)
    assert prepared.config.drafts == ("references",)
    events = list(prepared.events())
    assert events
    assert prepared.trace.config["references"] == ["notes.txt"]
    assert str(tmp_path) not in prepared.trace.to_json()
    assert [(r.name, r.num_tokens, r.text) for r in prepared.trace.references] == [("notes.txt", 9, "ABCABCABC")]
    assert prepared.warnings == ("absent.txt cannot be opened (No such file or directory); it was left out.",)
    nodes = [node for step in prepared.trace.steps("speculative") for node in step.nodes]
    assert "notes.txt" in {node.origin.source for node in nodes}
    assert prepared.trace.token_ids("speculative") == prepared.trace.token_ids("baseline")
    with pytest.raises(SpecvizError, match="absent"):
        run.prepare(RunConfig(prompt="AB", target="TINY", references=("absent.txt",)))


def test_a_reference_in_the_prompt_is_read_by_the_model_but_not_kept_in_the_trace(tmp_path, monkeypatch):
    target = toys.loaded(toys.tiny(vocab_size=256).model, "TINY", tokenizer=TOKENIZER)
    monkeypatch.setattr(run, "_load", lambda *_: target)
    monkeypatch.setattr(run, "require_known", lambda _: None)
    (tmp_path / "notes.txt").write_text("ABCABCXYZ\n")
    path = str(tmp_path / "notes.txt")
    config = RunConfig(prompt="AB", target="TINY", raw=True, references=(path,), prompt_references=(path,), seed=1)
    prepared = run.prepare(dataclasses.replace(config, max_new_tokens=4))
    assert prepared.prompt_ids == ids("ABCABCXYZ\n\nAB")
    whole = list(prepared.events())[0:1] and prepared.trace
    assert Trace.from_json(whole.to_json()) == whole
    kept = Trace.from_json(whole.without_texts().to_json())
    assert kept.config["prompt_references"] == ["notes.txt"]
    assert [kept.started(lane).prompt_ids for lane in ("speculative", "baseline")] == [(), ()]
    assert summarize(kept) == summarize(whole)
    assert audit(kept) == []
    (tmp_path / "notes.txt").write_text("A" * 300)
    with pytest.raises(ContextError, match="use some of them for drafting alone"):
        run.prepare(config)
