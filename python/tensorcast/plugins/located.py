"""A model that the engine's command line names by "tc://KEY" or by URI: its files in a folder, its weights by a key."""

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
    folder: str  # has config.json and the tokenizer; the engine takes it as its model
    served_name: str  # what the engine calls the model to its clients, where the command line does not say
    extra: dict[str, Any]  # the loader's options, of which `key` names the weights in every rank


def locate(model: str, extra: Mapping[str, Any] | None) -> LocatedModel:
    """Puts the model where the store does not have it. Raises NotFoundError when its key binds no files."""
    options = LoaderOptions.parse(extra)
    with options.files(model) as files:
        folder = _folder_with(files)
    name = model.removeprefix("tc://").removeprefix("hf://").rstrip("/")
    return LocatedModel(str(folder), name, {**(extra or {}), "key": options.key_of(model)})


def _folder_with(files: tensorcast.Files) -> pathlib.Path:
    """The folder of these files in this user's cache. It is written once, and appears whole: its name is their id."""
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
                raise  # else another process has written the same files
    return folder
