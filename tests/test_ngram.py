"""Counts: averaged as a dictionary would, small enough, found again in their file, and refused when damaged."""

import dataclasses
import math
import random
from collections import defaultdict

import numpy as np
import pytest
from count_makers import chat, counted, spoken_chat
from tokenizer_makers import byte_level

from specviz.distill import blending
from specviz.distill.counting import MIN_SIGHTINGS, PRIOR, USER_WEIGHT
from specviz.drafts.copies import CopyGuesser
from specviz.drafts.guess import Guess
from specviz.drafts.mix import make_tree
from specviz.drafts.ngram import NgramGuesser, NgramTable, context_keys, encode_probabilities, tokenizer_stamp
from specviz.errors import ModelError

CODE_ERROR = 1 / 60  # half a step of the eight-bit probabilities


def random_chats(seed, num=12, vocab_size=9):
    """Chats over few ids, so that contexts come again; every position with a distribution over some tokens."""
    chance = random.Random(seed)
    chats = []
    for index in range(num):
        ids = [chance.randrange(vocab_size) for _ in range(30)]
        tops = []
        for _ in ids[3:]:
            shares = sorted((chance.random() ** 3 for _ in range(3)), reverse=True)
            tops.append(list(zip(chance.sample(range(vocab_size), 3), [s / 3 for s in shares], strict=True)))
        chats.append(chat(ids, tops, first_row=3, answer_start=10, index=index))
    return chats


def naive_lists(chats):
    """Context → {token: probability}, by one dictionary per length, shortest first."""
    lists = {}
    for length, least in enumerate(MIN_SIGHTINGS, start=1):
        masses, seen, num = defaultdict(lambda: defaultdict(float)), defaultdict(float), defaultdict(int)
        for one in chats:
            for row, place in enumerate(range(one.first_row, len(one.ids))):
                if place < length:
                    continue
                context = tuple(one.ids[place - length : place].tolist())
                weight = 1.0 if place >= one.answer_start else USER_WEIGHT
                seen[context] += weight
                num[context] += 1
                for token_id, logp in zip(one.top_ids[row].tolist(), one.top_logps[row].tolist(), strict=True):
                    if math.exp(logp) >= 0.005:
                        masses[context][token_id] += weight * math.exp(logp)
        for context in seen:
            if num[context] >= least:
                lists[context] = smoothed(masses[context], seen[context], lists.get(context[1:]))
    return lists


def smoothed(masses, seen, shorter):
    if shorter is None:
        return {i: mass / (seen + 1) for i, mass in masses.items()}
    every = {*masses, *shorter}
    return {i: (masses.get(i, 0.0) + PRIOR * shorter.get(i, 0.0)) / (seen + PRIOR) for i in every}


@pytest.mark.parametrize("seed", range(3))
def test_every_context_lists_the_averaged_and_smoothed_probabilities(seed):
    chats = random_chats(seed)
    table, lists = counted(chats, vocab_size=9), naive_lists(chats)
    assert table.order == 4
    found = 0
    for context, expected in lists.items():
        level, ranked = table.find(context)
        shares = [share for _, share in ranked]
        assert shares == sorted(shares, reverse=True)
        if level < len(context):
            continue  # pruned, since it tells no more than the shorter one
        found += 1
        best = sorted(expected.values(), reverse=True)[: len(ranked)]
        assert shares == pytest.approx([max(share, 0.01) for share in best], rel=CODE_ERROR)
        assert all(expected[i] == pytest.approx(share, rel=CODE_ERROR) for i, share in ranked)
    assert found > 0.9 * len(lists)


def test_the_longest_known_context_decides():
    chats = [spoken_ids([0, 1, 2, 3, 0, 1, 2, 4, 5, 2, 6] * 3)]
    table = counted(chats, vocab_size=10)
    levels = {table.find(tail).level for tail in [(0, 1, 2), (9, 1, 2), (9, 9, 2), (9, 9, 9)]}
    assert levels == {3, 2, 1, 0}
    assert table.find((9, 9, 9)) == Guess(0, [])
    assert table.find(()) == Guess(0, [])


def spoken_ids(ids):
    """A chat in which the target was nearly sure of every token that came."""
    return chat(ids, [[(i, 0.9)] for i in ids[1:]])


def test_keys_of_many_contexts_are_those_of_each():
    chance = np.random.default_rng(0)
    columns = [chance.integers(0, 200_000, 500) for _ in range(4)]
    keys = context_keys(columns)
    for row in range(0, 500, 7):
        ids = np.array([column[row] for column in columns])
        assert context_keys([ids[i : i + 1] for i in range(4)])[0] == keys[row]
        one = dataclasses.replace(empty(), keys=keys[row : row + 1], starts=np.array([0, 1], np.uint32),
                                  ids=np.array([5], np.uint16), codes=np.array([0], np.uint8))  # fmt: skip
        assert one.find(tuple(ids[::-1].tolist())) == Guess(4, [(5, 1.0)])
    assert len(set(keys.tolist())) == 500


def empty():
    nothing = np.zeros(0, np.uint32)
    return NgramTable(
        nothing, np.zeros(1, np.uint32), nothing.astype(np.uint16), nothing.astype(np.uint8), 4, "toy", {}
    )


def test_eight_bits_keep_a_probability_to_three_percent():
    shares = np.exp(-np.linspace(0, 7.9, 200))
    table = dataclasses.replace(
        empty(), keys=np.array([1], np.uint32), starts=np.array([0, 200], np.uint32),
        ids=np.arange(200).astype(np.uint16), codes=encode_probabilities(shares),
    )  # fmt: skip
    read = [math.exp(-int(code) / 32) for code in table.codes]
    assert read == pytest.approx(shares.tolist(), rel=CODE_ERROR)


@pytest.mark.parametrize("max_bytes", [67_000, 70_000, 10**6])
def test_a_file_keeps_to_its_size_and_to_what_tells_most(tiny, max_bytes):
    chats = [spoken_chat(tiny, (i, i + 1), num=60) for i in range(20)]
    table = counted(chats, max_bytes=max_bytes)
    assert len(table.to_bytes()) <= max_bytes
    assert len(table.keys) > 20
    if max_bytes == 67_000:
        assert len(table.keys) < len(counted(chats).keys)


def test_the_same_chats_give_the_same_file():
    assert counted(random_chats(1)).to_bytes() == counted(random_chats(1)).to_bytes()


# The file.


@pytest.fixture
def written(tmp_path):
    table = dataclasses.replace(counted(random_chats(0), vocab_size=9), notes={"mix": "{}"})
    path = tmp_path / "ngram.safetensors"
    path.write_bytes(table.to_bytes())
    return table, path


def test_a_file_gives_the_table_that_was_written(written):
    table, path = written
    read = NgramTable.open(path)
    assert (read.order, read.stamp, read.notes) == (table.order, table.stamp, table.notes)
    for name in ("keys", "starts", "ids", "codes"):
        assert np.array_equal(getattr(read, name), getattr(table, name))
        assert isinstance(getattr(read, name).base, np.memmap)


@pytest.mark.parametrize("length", [0, 5, 8, 100, 500, -1])
def test_a_file_that_was_cut_is_one_sentence(written, length):
    _, path = written
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelError, match=r"is damaged or holds no counts.*\.$"):
        NgramTable.open(path)


def test_a_file_that_is_not_there_or_something_else_is_one_sentence(tmp_path):
    with pytest.raises(ModelError, match=r"No counts at .*distill --kind ngram\.$"):
        NgramTable.open(tmp_path / "none")
    other = tmp_path / "other"
    other.write_bytes((20).to_bytes(8, "little") + b'{"__metadata__":{} }' + bytes(50))
    with pytest.raises(ModelError, match="holds no counts"):
        NgramTable.open(other)


@pytest.mark.parametrize("name", ["keys", "starts", "ids", "codes"])
def test_a_table_whose_parts_do_not_fit_is_refused(written, name):
    table, path = written
    changed = {
        "keys": table.keys[::-1],
        "starts": table.starts[::-1],
        "ids": table.ids[:-1],
        "codes": table.codes[1:],
    }
    wrong = {name: np.ascontiguousarray(changed[name])}
    path.write_bytes(dataclasses.replace(table, **wrong).to_bytes())
    with pytest.raises(ModelError, match="parts do not fit together"):
        NgramTable.open(path)


def test_any_byte_changed_is_read_or_refused_but_never_a_traceback(written):
    _, path = written
    whole = path.read_bytes()
    chance = random.Random(3)
    for _ in range(300):
        place = chance.choice([chance.randrange(400), chance.randrange(len(whole))])
        path.write_bytes(whole[:place] + bytes([chance.randrange(256)]) + whole[place + 1 :])
        try:
            table = NgramTable.open(path)
        except ModelError:
            continue
        for tail in [(1, 2, 3, 4), (5, 6), (8,)]:
            assert all(0 < share <= 1 for _, share in table.find(tail).ranked)


def test_counts_serve_only_the_tokenizer_they_were_made_with():
    one, other = byte_level(["<s>", "</s>"]), byte_level(["<s>", "<e>"])
    table = dataclasses.replace(empty(), stamp=tokenizer_stamp(one))
    table.check_tokens(one, 258, "T")
    with pytest.raises(ModelError, match=r"another tokenizer than that of 'T'.*--target T\.$"):
        table.check_tokens(other, 258, "T")
    large = dataclasses.replace(table, ids=np.array([300], np.uint16))
    with pytest.raises(ModelError, match="tokens that 'T' has not"):
        large.check_tokens(one, 258, "T")


# What a blend is fitted to.


def test_weights_go_to_whoever_is_right():
    """The text repeats itself, so copies are right where they know the context; counts know another text."""
    repeating = chat([1, 2, 3, 4, 5, 6] * 30, [[(9, 0.9)]] * 179, answer_start=6)
    other = counted([spoken_ids([1, 6, 5, 4, 3, 2] * 5)], vocab_size=10)
    weights = blending.fit([CopyGuesser(), NgramGuesser(other)], [repeating])
    assert all(sum(shares) == pytest.approx(1.0) for shares in weights.values())
    assert weights[max(weights)][0] > 0.95


def test_a_replay_counts_passes_as_decoding_would(tiny):
    """The counts know the answer: chains as long as allowed, one more token each, less at the end."""
    answer = spoken_chat(tiny, num=24)
    table = counted([spoken_ids(answer.ids.tolist())] * 9)
    source = make_tree("ngram", table)
    assert blending.replay(source, [answer], 1, 97) < blending.replay(source, [answer], 6, 97)
    assert math.isnan(blending.replay(source, [], 4, 97))
    assert blending.replay(make_tree("ngram", empty()), [answer], 8, 97) == 1.0
