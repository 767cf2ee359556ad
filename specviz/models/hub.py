"""The Hugging Face Hub: what of it lies here, and whether it answers.

Owns: the Hub's local cache as a source of whole models, and downloads into it. Must not know the catalog or how
a model is loaded. Where something cannot be had it says so at once: the Hub's own client would wait and retry.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

import huggingface_hub
from huggingface_hub import constants

from specviz.errors import ModelError

_CONNECT_S = 3.0
_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def is_id(name: str) -> bool:
    """Whether a name has the form of a Hub id."""
    return _ID.fullmatch(name) is not None


def cached(repo: str) -> Path | None:
    """The local copy, where it holds a whole model: a tokenizer alone leaves a folder too."""
    try:
        folder = Path(huggingface_hub.snapshot_download(repo, local_files_only=True))
    except (OSError, ValueError):
        return None
    whole = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    return folder if whole else None


def folder_of(repo: str) -> Path:
    """The local copy, downloaded where there is none and the Hub answers at once.

    Raises:
        ModelError: it is neither here nor to be had.
    """
    if (here := cached(repo)) is not None:
        return here
    require(repo)
    try:
        return Path(huggingface_hub.snapshot_download(repo, allow_patterns=_WANTED))
    except Exception as error:  # the Hub client raises many kinds; each means that it cannot be had
        raise ModelError(f"{repo!r} could not be had from {constants.ENDPOINT}: {first_line(error)}") from None


def require(repo: str) -> None:
    """Ask once, briefly, whether the Hub is there.

    Raises:
        ModelError: offline, or no answer.
    """
    hint = f"it is not in the local cache {constants.HF_HUB_CACHE}; with a connection, run: hf download {repo}"
    if constants.is_offline_mode():
        raise ModelError(f"{repo!r} cannot be loaded offline: {hint}")
    url = urlsplit(constants.ENDPOINT)
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
        socket.create_connection((url.hostname or "", port), timeout=_CONNECT_S).close()
    except (OSError, ValueError):  # ValueError: an address that is none
        raise ModelError(f"{repo!r} cannot be loaded, since {url.hostname} does not answer: {hint}") from None


def first_line(error: Exception) -> str:
    """What a foreign error says, as part of our sentence."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
