"""The options of the model loaders, from an engine's `model_loader_extra_config`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorcast
from tensorcast import default_store

_SCHEME = "tc://"


@dataclasses.dataclass(frozen=True)
class LoaderOptions:
    """The options of one loader.

    key: the key or artifact id to load, by default the engine's model name. A model name "tc://KEY" overrides it.
    daemon: the address of the store daemon, by default the host's daemon.
    timeout_s: how long one load may take, by default without limit.
    """

    key: str | None = None
    daemon: str | None = None
    timeout_s: float | None = None

    @classmethod
    def parse(cls, extra: Mapping[str, Any] | None) -> LoaderOptions:
        """Raises ValueError for an unknown option or a value of the wrong type."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        types = {"key": str, "daemon": str, "timeout_s": (int, float)}
        for name, value in (extra or {}).items():
            if name not in known:
                raise ValueError(f"load format tensorcast has no option {name!r}; its options are {', '.join(known)}")
            if not isinstance(value, types[name]) or isinstance(value, bool):  # type: ignore[arg-type]
                raise ValueError(f"option {name} of load format tensorcast cannot be {value!r}")
        return cls(**dict(extra or {}))

    def key_of(self, model: str) -> str:
        if self.key is None or model.startswith(_SCHEME):
            return model.removeprefix(_SCHEME)
        return self.key

    def get(self, model: str) -> tensorcast.Weights:
        """Returns the weights in this host's memory, which all ranks of the host share. Nothing is copied."""
        return default_store.connect(self.daemon).get(self.key_of(model), device="cpu", timeout=self.timeout_s, progress=False)

    def fetch(self, model: str) -> None:
        """Lets this host's daemon bring the weights to its memory, without attaching them."""
        self.get(model).close()
