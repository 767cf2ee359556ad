"""Logits to rows: each setting against transformers' own processor or plain arithmetic; the one way to draw."""

import pytest
import torch
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specviz.config import RunConfig
from specviz.sampling import Sampler, draw, first_argmax, nucleus, one_hot, top_candidates, uniform

VOCAB = 50
PROMPT = [3, 7, 7, 20]


def random_logits(rows=3, width=VOCAB, seed=0):
    return 4 * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def sampler(eos_ids=(), vocab_size=VOCAB, **settings):
    return Sampler(RunConfig(**settings), PROMPT, vocab_size=vocab_size, eos_ids=eos_ids)


def rows_of(logits, paths=None, **settings):
    made = sampler(**settings)
    return made.probabilities(made.shape(logits, paths or [[]] * len(logits)))


@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 10.0])
@pytest.mark.parametrize("top_k", [0, 1, 5, VOCAB, 1000])
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.9, 1.0])
def test_rows_are_those_of_transformers_warpers(temperature, top_k, top_p):
    logits = random_logits()
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    expected = TopKLogitsWarper(min(top_k, VOCAB))(None, expected) if top_k else expected
    expected = TopPLogitsWarper(top_p)(None, expected) if top_p < 1 else expected
    rows = rows_of(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    assert torch.allclose(rows, expected.softmax(-1), atol=1e-6)
    assert torch.allclose(rows.sum(-1), torch.ones(3), atol=1e-6)


@pytest.mark.parametrize("penalty", [0.5, 1.3, 10.0])
def test_the_repetition_penalty_sees_prompt_output_and_each_rows_own_path(penalty):
    logits, committed = random_logits(), [9, 11]
    paths = [[], [30], [30, 7]]
    made = sampler(repetition_penalty=penalty)
    made.commit(committed)
    shaped = made.shape(logits, paths)
    for row, path, ours in zip(logits, paths, shaped, strict=True):
        text = torch.tensor([[*PROMPT, *committed, *path]])
        assert torch.allclose(ours, RepetitionPenaltyLogitsProcessor(penalty)(text, row[None])[0])


@pytest.mark.parametrize("num_new", [0, 1, 4, 5, 6])
def test_the_end_is_barred_for_exactly_the_minimum_of_tokens_counted_along_each_path(num_new):
    made = sampler(eos_ids=(4, 8), min_new_tokens=6)
    made.commit([1] * num_new)
    paths = [[2] * length for length in range(5)]
    shaped = made.shape(random_logits(5), paths)
    processor = MinNewTokensLengthLogitsProcessor(len(PROMPT), 6, [4, 8])
    for row, path, ours in zip(random_logits(5), paths, shaped, strict=True):
        text = torch.zeros(1, len(PROMPT) + num_new + len(path), dtype=torch.long)
        assert torch.equal(ours, processor(text, row[None])[0])


def test_shaping_leaves_the_models_own_logits_as_they_were():
    logits = random_logits()
    before = logits.clone()
    made = sampler(eos_ids=(4,), min_new_tokens=6, repetition_penalty=1.3, temperature=0.7, top_k=5)
    made.probabilities(made.shape(logits, [[]] * 3))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("width", [VOCAB - 3, VOCAB, VOCAB + 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_case_20_rows_have_the_targets_width_whatever_the_draft_has(width, temperature):
    logits = random_logits(width=width)
    logits[:, VOCAB:] = 50.0
    rows = rows_of(logits, temperature=temperature, repetition_penalty=1.3, top_k=VOCAB - 1)
    assert rows.shape == (3, VOCAB)
    assert not rows.isnan().any()
    assert (rows[:, width:] == 0).all()


def test_ids_beyond_the_vocabulary_do_not_disturb_penalties():
    made = Sampler(RunConfig(repetition_penalty=2.0), [VOCAB + 1], vocab_size=VOCAB, eos_ids=[VOCAB + 2])
    made.commit([VOCAB + 3])
    assert torch.equal(made.shape(random_logits(1), [[VOCAB + 4]]), random_logits(1))


def test_temperature_0_gives_one_hot_rows_with_the_lowest_id_among_equals():
    logits = torch.zeros(2, VOCAB)
    logits[0, [9, 17, 30]] = 2.5
    rows = rows_of(logits, temperature=0.0)
    assert rows.tolist() == [one_hot(9, sampler()).tolist(), one_hot(0, sampler()).tolist()]


def test_confidence_shows_the_softmax_at_temperature_0_and_the_rows_themselves_above():
    for temperature in (0.0, 0.5):
        made = sampler(temperature=temperature)
        rows = made.probabilities(random_logits())
        shown = made.confidence(random_logits(), rows)
        assert torch.equal(shown, rows if temperature else random_logits().softmax(-1))


@pytest.mark.parametrize("size", [100, 1000, 6000])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.0, 0.5, 8.0])
def test_the_nucleus_is_the_fewest_tokens_whether_or_not_a_slice_holds_it(size, top_p, spread):
    rows = (spread * torch.randn(2, size, generator=torch.Generator().manual_seed(1))).softmax(-1)
    kept = nucleus(rows, top_p)
    for row, ours in zip(rows, kept, strict=True):
        chosen = row[ours > 0].double()
        assert chosen.sum() >= top_p - 1e-5
        assert chosen.sum() - chosen.min() < top_p + 1e-5
        assert chosen.min() >= max(row[ours == 0].tolist(), default=0)
    assert torch.allclose(kept.sum(-1), torch.ones(2), atol=1e-5)


def test_ties_are_broken_by_the_lowest_id_everywhere():
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(0, 4, (40, 300), generator=generator).float()  # as coarse as bfloat16 logits
    expected = [min(range(300), key=lambda i, row=row: (-row[i], i)) for row in rows.tolist()]
    assert first_argmax(rows).tolist() == expected
    values, ids = top_candidates(rows, 4)
    assert (values[:, :-1] >= values[:, 1:]).all()
    equal = values[:, :-1] == values[:, 1:]
    assert (ids[:, :-1] < ids[:, 1:])[equal].all()
    assert torch.equal(rows.gather(1, ids), values)


@pytest.mark.parametrize(
    ("u", "token_id", "low", "high"),
    [(0.0, 1, 0.0, 0.25), (0.2499, 1, 0.0, 0.25), (0.25, 3, 0.25, 1.0), (1 - 2**-53, 3, 0.25, 1.0)],
)
def test_a_draw_is_the_token_whose_interval_holds_u_and_never_an_impossible_one(u, token_id, low, high):
    assert draw(torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0]), u) == (token_id, low, high)


def test_a_row_that_sums_to_1_only_nearly_is_drawn_from_all_the_same():
    assert draw(torch.tensor([0.3, 0.6999]), 1 - 2**-53)[0] == 1


def test_uniforms_lie_in_the_unit_interval_and_follow_the_seed():
    first, second = (torch.Generator().manual_seed(5) for _ in range(2))
    draws = [uniform(first) for _ in range(1000)]
    assert draws == [uniform(second) for _ in range(1000)]
    assert 0 <= min(draws) < 0.01 < 0.99 < max(draws) < 1
    assert sum(draws) / 1000 == pytest.approx(0.5, abs=0.03)
