"""The options of the model loaders: what an engine's `model_loader_extra_config` may say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorcast
from tensorcast import default_store

_SCHEME = "tc://"


@dataclasses.dataclass(frozen=True)
class LoaderOptions:
    """`key` is what to load, by default the engine's model name; a name that says "tc://KEY" wins over it. `daemon` is the
    address of the store daemon, by default the host's; `timeout_s` how long one load may take, by default for ever."""

    key: str | None = None
    daemon: str | None = None
    timeout_s: float | None = None

    @classmethod
    def parse(cls, extra: Mapping[str, Any] | None) -> LoaderOptions:
        """ValueError for an option that there is not, or of another type."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        types = {"key": str, "daemon": str, "timeout_s": (int, float)}
        for name, value in (extra or {}).items():
            if name not in known:
                raise ValueError(f"load format tensorcast has no option {name!r}: it has {', '.join(known)}")
            if not isinstance(value, types[name]) or isinstance(value, bool):  # type: ignore[arg-type]
                raise ValueError(f"option {name} of load format tensorcast cannot be {value!r}")
        return cls(**dict(extra or {}))

    def key_of(self, model: str) -> str:
        if self.key is None or model.startswith(_SCHEME):
            return model.removeprefix(_SCHEME)
        return self.key

    def get(self, model: str) -> tensorcast.Weights:
        """The weights in this host's memory, which all ranks on it share; nothing of them is copied here."""
        return default_store.connect(self.daemon).get(self.key_of(model), device="cpu", timeout=self.timeout_s, progress=False)

    def fetch(self, model: str) -> None:
        """Has this host's daemon bring the weights, and attaches nothing."""
        self.get(model).close()
