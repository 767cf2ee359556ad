"""One distillation from a target's name to a folder with a draft.

Owns: the order of the work, how the time is shared, resuming. Must not know faces: progress goes to a
callback as values.
"""

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from specviz import models
from specviz.distill import card, store
from specviz.distill.boost import Earlier
from specviz.distill.chats import Planner, Template, read_template
from specviz.distill.generate import Writer, check_context
from specviz.distill.kinds import KINDS, Kind, Lesson
from specviz.distill.measure import Agreement
from specviz.distill.report import Listener, Report
from specviz.distill.settings import DistillSettings, claim_folder, read_prompts, save_state
from specviz.distill.teacher import Teacher
from specviz.distill.train import Progress
from specviz.drafts.head_file import is_head
from specviz.errors import ConfigError, ModelError
from specviz.models import source
from specviz.numerics import pack_linears

_CHECKPOINT, _SCRATCH = "checkpoint.pt", "states"

Clock = Callable[[], float]
Loader = Callable[[str], tuple[Any, Any]]


@dataclass(frozen=True)
class Result:
    """What a finished job made. `course` holds (tokens seen, agreement) over the training."""

    out: Path
    agreement: Agreement
    progress: Progress
    num_answer_tokens: int
    data_s: float

    @property
    def course(self) -> list[tuple[int, float]]:
        return self.progress.course


def check_memory(weight_bytes: int, memory_bytes: int, name: str) -> None:
    """Raises ModelError when a target cannot be held: its weights, packed copies and a margin."""
    if weight_bytes * 2 > memory_bytes:
        raise ModelError(
            f"{name} has {weight_bytes / 1e9:.1f} GB of weights and needs about twice that while it is "
            f"loaded; this machine has {memory_bytes / 1e9:.1f} GB. Choose a smaller target."
        )


def require_causal(name: str) -> None:
    """Raises ModelError for a draft that gives no probabilities by itself: a head, counts, a copy."""
    folder = source.local_folder(name)
    if source.counts_of(name) or (folder and is_head(folder)):
        raise ModelError(
            f"--after {name} is no model of its own, so what it misses is not known; name a draft such as tiny."
        )


def load_target(name: str) -> tuple[Any, Any]:
    """(model, tokenizer) of a target that fits this machine, on the GPU where there is one."""
    files = source.folder_of(name).glob("*.safetensors")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    check_memory(sum(file.stat().st_size for file in files), memory_bytes, name)
    return models.load_plain(name, device="cuda" if torch.cuda.is_available() else "cpu")


def distill(
    settings: DistillSettings,
    *,
    progress: Listener | None = None,
    loader: Loader = load_target,
    clock: Clock = time.monotonic,
) -> Result:
    """Writes data, trains, measures, and leaves weights and a card in `settings.out`.

    After a kill the same call goes on with at most a minute lost. Raises ConfigError, ModelError or
    ContextError with one sentence; what was written before stays.
    """
    prompts = read_prompts(settings.prompts) if settings.prompts else ()
    return _Job(settings, prompts, progress or _ignore, clock).run(loader)


def _ignore(report: Report) -> None:
    del report


class _Job:
    def __init__(self, settings: DistillSettings, prompts: tuple[str, ...], say: Listener, clock: Clock) -> None:
        self.settings, self.prompts, self.say, self.clock = settings, prompts, say, clock
        self.kind: Kind = KINDS[settings.kind]()
        self.identity = settings.identity(prompts)
        key = {name: self.identity[name] for name in ("target", "seed", "prompts")}
        cache = settings.cache or source.cache_dir() / "distill"
        self.data = cache / sha256(json.dumps(key).encode()).hexdigest()[:16]
        self.state = claim_folder(settings.out, self.identity)

    def run(self, loader: Loader) -> Result:
        self.say(Report("load", f"Loading {self.settings.target}"))
        model, tokenizer = loader(self.settings.target)
        self.kind.build(model, tokenizer, self.settings.seed)
        if self.settings.start:
            self.kind.start_from(self.settings.start)
        self.earlier = self._load_earlier(tokenizer, loader)
        self._save_state()  # only now, so that a refused job leaves nothing behind
        self._write_data(model, tokenizer)
        chats, held_out = self._chats()
        trained = self.kind.train(self._lesson(chats, held_out))
        self.say(Report("measure", "Measuring agreement on held-out answers"))
        measured = self.kind.measure(held_out)
        num_answer_tokens = sum(chat.num_answer for chat in chats)
        result = Result(self.settings.out, measured, trained, num_answer_tokens, self.state["data_s"])
        self._save(result)
        return result

    def _load_earlier(self, tokenizer: Any, loader: Loader) -> Earlier:
        """The drafts that come before this one."""
        found = {}
        for name in self.settings.after:
            require_causal(name)
            self.say(Report("load", f"Loading {name}"))
            model, theirs = loader(name)
            if theirs.get_vocab() != tokenizer.get_vocab():
                ours = self.settings.target
                raise ModelError(f"--after {name} has other tokens than {ours}; name a draft of the same target.")
            found[name] = model.eval()
        return Earlier(found)

    def _write_data(self, model: Any, tokenizer: Any) -> None:
        template = read_template(tokenizer)
        eos_ids = models.loading.eos_ids_of(model, tokenizer)
        self._note_gaps(template, eos_ids)
        limits = self.settings.limits
        longest = Planner(tokenizer, self.prompts, self.settings.seed, 1).longest_given
        max_len = limits.max_len(template, longest)
        check_context(max_len, model.config.max_position_embeddings)
        planner = Planner(tokenizer, self.prompts, self.settings.seed, max_len)
        pack_linears(model)
        vocab_size = model.config.vocab_size
        teacher = Teacher(model, limits.num_rows, max_len)
        writer = Writer(teacher, planner, template, limits, eos_ids, self.data, vocab_size, self.clock)
        writer.run(self.settings.data_tokens, self._data_reporter(writer.num_tokens))
        save_state(self.settings.out, self.state)

    def _note_gaps(self, template: Template, eos_ids: frozenset[int]) -> None:
        if not template.chat:
            self.say(Report("note", "The target has no chat template, so it writes raw text."))
        if not eos_ids:
            limit = self.settings.limits.max_answer
            self.say(Report("note", f"The tokenizer has no end token, so every text runs to {limit} tokens."))

    def _data_reporter(self, start: int) -> Callable[[int], bool]:
        """Tells the listener how far the data are and the writer when its share of the time is over."""
        began, before, wanted = self.clock(), self.state["data_s"], self.settings.data_tokens
        allowed = self.settings.minutes * 60 * self.kind.data_share
        saved = began

        def report(total: int) -> bool:
            nonlocal saved
            now = self.clock()
            used = before + now - began
            rate = max(1e-9, (total - start) / max(1e-9, now - began))
            left = min(allowed - used, (wanted - total) / rate)
            fraction = min(1.0, max(total / wanted, used / allowed))
            self.say(Report("data", f"{total:,} of {wanted:,} answer tokens", fraction, max(0.0, left)))
            self.state["data_s"] = used
            if now - saved > 30:
                self._save_state()
                saved = now
            return bool(used < allowed)

        return report

    def _chats(self) -> tuple[list[store.Chat], list[store.Chat]]:
        """(trained on, held out). What asks the same as a held-out chat is left out of both."""
        chats = store.read_chats(self.data, self.settings.data_tokens)
        held_out = [chat for chat in chats if chat.held_out]
        asked = {chat.user_turn for chat in held_out}
        return [chat for chat in chats if chat.user_turn not in asked], held_out

    def _lesson(self, chats: list[store.Chat], held_out: list[store.Chat]) -> Lesson:
        if not chats:
            raise ConfigError("The target wrote no usable chat in the time given; give more --minutes.")
        return Lesson(
            target=self.settings.target,
            chats=chats,
            held_out=held_out,
            seconds=max(1.0, self.settings.minutes * 60 - self.state["data_s"]),
            max_steps=self.settings.max_steps,
            seed=self.settings.seed,
            checkpoint=self.settings.out / _CHECKPOINT,
            scratch=self.settings.out / _SCRATCH,
            clock=self.clock,
            say=self.say,
            earlier=self.earlier,
        )

    def _save(self, result: Result) -> None:
        out = self.settings.out
        try:
            self.kind.save(out)
        except OSError as error:
            raise store.storage_error(out, error) from error
        except SafetensorError as error:  # it tells the system's error in words alone
            number = re.search(r"os error (\d+)", str(error))
            raise store.storage_error(out, OSError(int(number[1]) if number else errno.EIO, str(error))) from error
        text = card.text(self.settings, result, self.kind.about())
        store.write_atomic(out / "README.md", lambda file: file.write(text.encode()))
        self.state["finished"] = True
        self._save_state()
        (out / _CHECKPOINT).unlink(missing_ok=True)
        shutil.rmtree(out / _SCRATCH, ignore_errors=True)
        self.say(Report("done", f"The draft is in {out}", 1.0, 0.0))

    def _save_state(self) -> None:
        save_state(self.settings.out, self.state)
