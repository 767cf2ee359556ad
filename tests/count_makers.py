"""Chats and counts to draft from, made by toy models."""

import numpy as np
from toys import P9, plain_greedy, plain_logits

from specviz.distill.counting import count
from specviz.distill.store import TOP, Chat
from specviz.drafts.mix import make_tree


def chat(ids, tops, *, first_row=1, answer_start=1, index=0, held_out=False):
    """A chat of these ids; `tops` holds [(token, probability), ...] for each position from `first_row` on."""
    width = max(map(len, tops))
    top_ids = np.array([[i for i, _ in top] + [0] * (width - len(top)) for top in tops])
    shares = np.array([[p for _, p in top] + [0.0] * (width - len(top)) for top in tops])
    logps = np.log(np.maximum(shares, 1e-7)).astype(np.float16)
    return Chat(index, held_out, 0.0, first_row, answer_start, np.array(ids), top_ids, logps)


def spoken_chat(target, prompt_ids=P9, num=40, index=0):
    """What a toy answers greedily, and what it expected at every position."""
    ids = [*prompt_ids, *plain_greedy(target, prompt_ids, num)]
    shares, best = plain_logits(target, ids)[:-1].softmax(-1).topk(min(TOP, target.vocab_size))
    tops = [list(zip(i, p, strict=True)) for i, p in zip(best.tolist(), shares.tolist(), strict=True)]
    return chat(ids, tops, answer_start=len(prompt_ids), index=index)


def counted(chats, vocab_size=97, max_bytes=10**6):
    return count(chats, vocab_size=vocab_size, stamp="toy", max_bytes=max_bytes)


def counted_source(kind, target, prompts=(P9,)):
    """A draft source over what `target` says to the prompts."""
    chats = [spoken_chat(target, prompt) for prompt in prompts]
    return make_tree(kind, counted(chats, target.vocab_size))
