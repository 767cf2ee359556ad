"""What the target is asked to write: the plan of every chat, from its index alone.

Owns: opening words that spread the topics, the parts of the chat template, temperatures, the split into
trained and held-out chats, own prompts. Must not know models, files or training.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

HELD_OUT_EVERY = 20
TEMPERATURES = (0.0, 0.7, 1.0)
TEMPERATURE_SHARES = (0.5, 0.2, 0.3)
RAW_LEAD = 24
"""Tokens of raw text that are drawn at temperature 1 before the "answer", where there is no template."""

OPENINGS: tuple[tuple[float, tuple[str, ...]], ...] = (
    (1.0, ("", "Can you", "I", "How", "What", "Why", "My", "Please", "Is it", "Let's", "Hi! I", "Tell me")),
    (1.0, ("Explain", "What is", "Describe", "Why does", "How does", "What are the", "Who was", "When did",
           "Where is", "What causes", "Compare", "What is the difference between", "Define", "Which")),
    (1.0, ("Write a short story about", "Write a poem about", "Write an email to", "Write a letter",
           "Imagine", "Compose", "Write a dialogue between", "Write a description of", "Draft a",
           "Create a", "Write a blog post about", "Write a persuasive essay about", "Tell me a joke about")),
    (1.0, ("Write a Python function", "Write a Python program that", "Fix this code:\n", "Write a SQL query",
           "Explain this code:\n```python\n", "Write a JavaScript function", "How do I implement",
           "What does this function do?\ndef", "Write a C program", "Write a function that takes a list",
           "Write HTML", "Write a bash script", "Write unit tests for", "Complete this function:\ndef")),
    (1.0, ("Solve", "Calculate", "What is 12", "If a train", "A farmer has", "Tom has", "There are",
           "How many", "Find the area", "A shop sells", "Simplify", "What is the sum", "Sarah buys",
           "A car travels", "Janet has", "Solve for x:", "The price of")),
    (0.8, ("Translate to French:", "Translate the following sentence into German:", "How do you say",
           "Translate into English:", "Translate from German to English:", "Translate to Spanish:",
           "Translate this into Chinese:", "Translate this paragraph to Italian:")),
    (1.0, ("Summarize the following text:\n", "Summarize:", "Give a one-sentence summary of this article:\n",
           "Shorten this paragraph:", "Rewrite the following", "What are the key points of this text?\n",
           "Correct the grammar:", "Make this sentence more formal:", "TL;DR of this:\n")),
    (1.0, ("Read the passage and answer the question.\n\nPassage:", "Context:", "Based on the text below,",
           "Use the following documents to answer the question.\n\nDocument 1:", "Given the article",
           "Extract", "Classify", "According to the passage,")),
    (0.8, ("List five", "List the", "Give me ten ideas for", "What are some tips for", "Give me a recipe for",
           "Plan a", "Suggest", "Name three", "What are the steps to", "Make a table of", "Give examples of",
           "What are the advantages of", "Create a weekly schedule")),
    (0.5, ("Pretend you are", "You are a", "Act as", "What would you", "Should I", "Give me advice on",
           "I am feeling", "Help me", "I need", "What do you think about", "How can I improve my")),
    (0.7, ("请", "什么是", "写一", "如何", "为什么", "你好", "解释", "把这句话翻译成英文：", "中国", "给我",
           "介绍一下", "帮我写", "怎么", "总结")),
)  # fmt: skip
"""Weighted categories of first words; the target goes on from them. The last one is Chinese."""


class Tokenizer(Protocol):
    """What is used of a tokenizer."""

    chat_template: Any
    bos_token_id: int | None
    eos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...


@dataclass(frozen=True)
class Template:
    """The fixed ids around a user turn. Without a chat template `suffix` is empty and `chat` False."""

    header: tuple[int, ...]
    suffix: tuple[int, ...]
    chat: bool


def read_template(tokenizer: Tokenizer) -> Template:
    """Takes the chat template apart at the user's words; raw text from the first token without one."""
    if not tokenizer.chat_template:
        first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        return Template((first if first is not None else 0,), (), chat=False)
    mark = "USERTURN"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": mark}], tokenize=False, add_generation_prompt=True
    )
    before, after = str(text).split(mark)
    header = tokenizer.encode(before, add_special_tokens=False)
    suffix = tokenizer.encode(after, add_special_tokens=False)
    return Template(tuple(header), tuple(suffix), chat=True)


@dataclass(frozen=True)
class Limits:
    """How long turns may be, in tokens, and how many chats are written side by side."""

    num_rows: int = 96
    max_user: int = 96
    max_answer: int = 200
    min_user: int = 4

    def max_len(self, template: Template, longest_given: int) -> int:
        """Positions that one chat can take."""
        user = max(self.max_user, longest_given)
        return len(template.header) + user + len(template.suffix) + self.max_answer


@dataclass(frozen=True, eq=False)
class ChatPlan:
    """One chat to be written: the first words, whether the user turn is complete, and every draw.

    `draws` are uniform numbers, one for each position after the header, so that a chat's text does not
    depend on its neighbours in the batch.
    """

    index: int
    held_out: bool
    temperature: float
    opening: tuple[int, ...]
    complete: bool
    draws: npt.NDArray[np.float64]


class Planner:
    """Index → ChatPlan, for one seed and one list of own prompts.

    Own prompts come first, each at every temperature; then the target invents the user turns.
    One chat in HELD_OUT_EVERY (for own prompts: one prompt) is held out and answered at temperature 0.
    """

    def __init__(self, tokenizer: Tokenizer, prompts: tuple[str, ...], seed: int, max_len: int) -> None:
        self._prompts = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in prompts]
        self._openings = [
            [tuple(tokenizer.encode(words, add_special_tokens=False)) if words else () for words in group]
            for _, group in OPENINGS
        ]
        weights = np.array([weight for weight, _ in OPENINGS])
        self._shares = weights / weights.sum()
        self._chat = bool(tokenizer.chat_template)
        self._seed = seed
        self._max_len = max_len

    @property
    def longest_given(self) -> int:
        """Tokens of the longest own prompt or opening."""
        openings = (words for group in self._openings for words in group)
        return max(len(ids) for ids in (*self._prompts, *openings))

    def plan(self, index: int) -> ChatPlan:
        """The chat of that index; the same for the same seed, whatever else was planned."""
        rng = np.random.default_rng((self._seed, index))
        temperature = float(rng.choice(TEMPERATURES, p=TEMPERATURE_SHARES))
        group = self._openings[int(rng.choice(len(self._openings), p=self._shares))]
        opening = group[int(rng.integers(len(group)))] if self._chat else ()
        own = index < len(self._prompts) * len(TEMPERATURES)
        number = index // len(TEMPERATURES) if own else index
        if own:
            opening, temperature = self._prompts[number], TEMPERATURES[index % len(TEMPERATURES)]
        held_out = number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        draws = rng.random(self._max_len)
        return ChatPlan(index, held_out, 0.0 if held_out else temperature, opening, own, draws)
