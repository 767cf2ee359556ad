"""What a distillation is asked to do, and which folder it may do it in.

Owns: the settings and their legal ranges, reading own prompts, the state of a job in its folder, what may
be overwritten. Must not know models, data or training.
"""

import json
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from specviz.config import MAX_DRAFTS
from specviz.distill.chats import Limits
from specviz.distill.kinds import KINDS
from specviz.distill.store import PART, write_atomic
from specviz.errors import ConfigError
from specviz.prompts import read_file

_STATE = "distill.json"


@dataclass(frozen=True, kw_only=True)
class DistillSettings:
    """What to train and for how long. `prompts` is a JSONL file of own prompts, `cache` where data lie.

    `after` names earlier drafts of the same target: the new one learns what they miss. `start` names a finished
    draft of the same kind and target, whose weights are trained further.

    Raises ConfigError for a value out of range.
    """

    target: str
    out: Path
    kind: str = "tiny"
    after: tuple[str, ...] = ()
    start: str | None = None
    minutes: float = 30.0
    data_tokens: int = 1_000_000
    prompts: Path | None = None
    seed: int = 0
    cache: Path | None = None
    max_steps: int | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"There is no kind of draft called {self.kind!r}; choose from {', '.join(KINDS)}.")
        if self.after and not KINDS[self.kind]().can_follow:
            able = " or ".join(name for name, make in KINDS.items() if make().can_follow)
            raise ConfigError(
                "--after trains a draft on what earlier ones miss, which has no meaning for --kind "
                f"{self.kind}; leave it out, or choose --kind {able}."
            )
        if len(self.after) >= MAX_DRAFTS:
            most = f"{MAX_DRAFTS} drafts share a tree at most, so at most {MAX_DRAFTS - 1} can come earlier"
            raise ConfigError(f"--after was given {len(self.after)} times; {most}.")
        if not 0 < self.minutes <= 100_000:
            raise ConfigError(f"--minutes {self.minutes:g} is out of range; give more than 0 and at most 100,000.")
        if not 0 < self.data_tokens <= 10**9:
            raise ConfigError(f"--data-tokens {self.data_tokens} is out of range; give 1 to 1,000,000,000.")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"--seed {self.seed} is out of range; give 0 to {2**63 - 1}.")

    def identity(self, prompts: tuple[str, ...]) -> dict[str, Any]:
        """What makes two runs the same job; more time or data continues one."""
        digest = sha256(json.dumps(prompts).encode()).hexdigest()[:12] if prompts else ""
        job = {"target": self.target, "kind": self.kind, "seed": self.seed, "prompts": digest}
        chosen = {"after": list(self.after), "start": self.start}
        return job | {name: value for name, value in chosen.items() if value}


def read_prompts(path: Path) -> tuple[str, ...]:
    """The first turns of a JSONL file of prompts.

    Raises ConfigError naming the first line that cannot be read.
    """
    return tuple(prompt.turns[0] for prompt in read_file(path))


def claim_folder(out: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """The state of the unfinished job in `out`, or that of a new one; nothing is written yet.

    Raises ConfigError for a folder that holds anything else.
    """
    try:
        out.exists()
    except OSError as error:
        raise ConfigError(f"--out {str(out)[:60]}… cannot be a folder: {error.strerror}.") from None
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; give a new folder.")
    path = out / _STATE
    if path.exists():
        state = _read_state(path)
        if state.get("job") != identity:
            raise ConfigError(f"--out {out} belongs to another job ({state.get('job')}); give a new folder.")
        if state.get("finished"):
            raise ConfigError(f"--out {out} holds a finished draft; give a new folder or delete it.")
        return state
    if out.exists() and not all(left.name.startswith(PART) for left in out.iterdir()):
        raise ConfigError(f"--out {out} is not empty and holds no unfinished job; give a new folder.")
    return {"job": identity, "finished": False, "data_s": 0.0}


def save_state(out: Path, state: dict[str, Any]) -> None:
    """Writes the state of the job in `out`, whole or not at all."""
    text = json.dumps(state, indent=1)
    write_atomic(out / _STATE, lambda file: file.write(text.encode()))


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        state = None
    if not isinstance(state, dict):
        raise ConfigError(f"{path} is damaged; give a new folder.")
    return state
