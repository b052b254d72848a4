"""The options of the model loaders, from an engine's `model_loader_extra_config`, and the model that they name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tensorcast
from tensorcast import default_store

_KEY_SCHEME = "tc://"
_URI_SCHEMES = ("s3://", "gs://", "hf://")

_Result = TypeVar("_Result")


def names_stored_model(model: str) -> bool:
    """Whether an engine's model name is "tc://KEY", or the URI of a model that the daemon reads."""
    return model.startswith((_KEY_SCHEME, *_URI_SCHEMES))


@dataclasses.dataclass(frozen=True)
class LoaderOptions:
    """The options of one loader.

    key: the key or artifact id to load, by default the engine's model name. A model name "tc://KEY" overrides it.
    daemon: the address of the store daemon; the default is this host's daemon.
    timeout_s: max seconds for one load, and separately for the import of a URI before it. By default without limit.
    """

    key: str | None = None
    daemon: str | None = None
    timeout_s: float | None = None

    @classmethod
    def parse(cls, extra: Mapping[str, Any] | None) -> LoaderOptions:
        """Reads the options. Raises ValueError for an unknown option or a value of the wrong type."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        types = {"key": str, "daemon": str, "timeout_s": (int, float)}
        for name, value in (extra or {}).items():
            if name not in known:
                raise ValueError(f"load format tensorcast has no option {name!r}; its options are {', '.join(known)}")
            if not isinstance(value, types[name]) or isinstance(value, bool):  # type: ignore[arg-type]
                raise ValueError(f"option {name} of load format tensorcast cannot be {value!r}; pass {'a number' if name == 'timeout_s' else 'a str'}")
        return cls(**dict(extra or {}))

    def key_of(self, model: str) -> str:
        name = model.removeprefix(_KEY_SCHEME) if self.key is None or model.startswith(_KEY_SCHEME) else self.key
        return name.rstrip("/") if name.startswith(_URI_SCHEMES) else name

    def get(self, model: str) -> tensorcast.Weights:
        """Returns the weights in this host's memory. All ranks of the host share them, without a copy."""
        return self._put_on_first_use(
            model, lambda store, key: store.get(key, device="cpu", timeout=self.timeout_s, progress=False)
        )

    def fetch(self, model: str) -> None:
        """Makes this host's daemon bring the weights to its memory. Keeps no lease on them."""
        self.get(model).close()

    def files(self, model: str) -> tensorcast.Files:
        """Returns the files that the key binds with the weights (config.json, tokenizer)."""
        return self._put_on_first_use(model, lambda store, key: store.files(key, timeout=self.timeout_s))

    def _put_on_first_use(self, model: str, use: Callable[[tensorcast.Store, str], _Result]) -> _Result:
        store, key = default_store.connect(self.daemon), self.key_of(model)
        uri = next((name for name in (model, key) if name.startswith(_URI_SCHEMES)), None)
        own_key = key.startswith(_URI_SCHEMES)  # names the URI's content; any other key keeps its binding
        try:
            return use(store, key)
        except tensorcast.NotFoundError:
            if uri is None or (not own_key and key in store):
                raise
        try:
            # Ranks and nodes that do this at the same time share one import: the daemons join it.
            store.put(uri, key=key, expected_revision=None if own_key else 0, timeout=self.timeout_s, progress=False)
        except tensorcast.FailedPreconditionError:
            if key not in store:
                raise  # otherwise another rank has bound it meanwhile
        return use(store, key)
