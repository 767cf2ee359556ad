"""What a distillation is asked to do, and which folder it may do it in.

Owns: the settings and their legal ranges, reading own prompts, the state of a job in its folder, what may
be overwritten. Must not know models, data or training.
"""

import json
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from specviz.distill.chats import Limits
from specviz.distill.store import write_atomic
from specviz.errors import ConfigError

KINDS = ("tiny",)
_STATE = "distill.json"


@dataclass(frozen=True, kw_only=True)
class DistillSettings:
    """What to train and for how long. `prompts` is a JSONL file of own prompts, `cache` where data lie.

    Raises ConfigError for a value out of range.
    """

    target: str
    out: Path
    kind: str = "tiny"
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
        if not 0 < self.minutes <= 100_000:
            raise ConfigError(f"--minutes {self.minutes:g} is out of range; give more than 0, say 30.")
        if not 0 < self.data_tokens <= 10**9:
            raise ConfigError(f"--data-tokens {self.data_tokens} is out of range; give at least 1, say 1000000.")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"--seed {self.seed} is out of range; give 0 or more.")

    def identity(self, prompts: tuple[str, ...]) -> dict[str, Any]:
        """What makes two runs the same job; more time or data continues one."""
        digest = sha256(json.dumps(prompts).encode()).hexdigest()[:12] if prompts else ""
        return {"target": self.target, "kind": self.kind, "seed": self.seed, "prompts": digest}


def read_prompts(path: Path) -> tuple[str, ...]:
    """The first turns of a JSONL file with `prompt` or `turns` in each line.

    Raises ConfigError naming the first line that cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts {path} cannot be read ({_reason(error)}); give a JSONL file.") from error
    found = [_prompt(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError(f"--prompts {path} holds no prompt; give one JSON object per line.")
    return tuple(found)


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or "unreadable" if isinstance(error, OSError) else "it is not UTF-8 text"


def _prompt(line: str, where: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    turns = entry.get("turns") or [entry.get("prompt")] if isinstance(entry, dict) else None
    if not isinstance(turns, list) or not isinstance(turns[0], str) or not turns[0].strip():
        raise ConfigError(f'{where} is not a prompt; each line is an object like {{"prompt": "..."}}.')
    return turns[0]


def claim_folder(out: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """The state of the unfinished job in `out`, or that of a new one in an empty folder.

    Raises ConfigError for a folder that holds anything else.
    """
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
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out {out} is not empty and holds no unfinished job; give a new folder.")
    state = {"job": identity, "finished": False, "data_s": 0.0}
    save_state(out, state)
    return state


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
