"""Locates a model that the engine's command line names by "tc://KEY" or by URI: its files and its weights."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import tensorcast
from tensorcast.plugins.options import LoaderOptions


@dataclasses.dataclass(frozen=True)
class LocatedModel:
    folder: str  # has config.json and the tokenizer; the engine uses it as its model path
    served_name: str  # the model's name for the engine's clients, unless the command line sets one
    extra: dict[str, Any]  # the loader's options; `key` names the weights in every rank


def locate(model: str, extra: Mapping[str, Any] | None) -> LocatedModel:
    """Locates the model, and first puts it if the store does not have it. Raises NotFoundError if its key binds no
    files.
    """
    options = LoaderOptions.parse(extra)
    with options.files(model) as files:
        folder = _folder_with(files)
    name = model.removeprefix("tc://").removeprefix("hf://").rstrip("/")
    return LocatedModel(str(folder), name, {**(extra or {}), "key": options.key_of(model)})


def _folder_with(files: tensorcast.Files) -> pathlib.Path:
    """The folder of these files in this user's cache, named by their id. It is written once and renamed when complete."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "tensorcast", "files")
    folder = cache / files.artifact_id.replace(":", "-")
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="unfinished-") as unfinished:
        written = pathlib.Path(unfinished, "files")
        files.write(written)
        try:
            written.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise  # otherwise another process has written the same files
    return folder
