"""Spans of the program, in the same trace as the spans of the store's calls.

    with tracing.span("load", {"model": "llama"}) as span:
        weights = store.get("llama/prod")     # Client/Get and all spans below it, in the daemons too, are its children
        span.set_attribute("tensors", len(weights))

    @tracing.traced
    async def serve(): ...

If the program uses OpenTelemetry itself (the `opentelemetry` package with a provider), the spans of this module are spans
of that provider, and the store's calls are children of the provider's current span. Without a provider, the spans of this
module are TensorCast's own. Own spans are exported after `start()`; before `start()` they are only ids, for logs and for
the daemons' traces. A span that the program opens is sampled at every sampling ratio.

Spans belong to a context (PEP 567), so each thread and each asyncio task has its own current span. Spans and calls raise no
errors of telemetry, and do not wait for an exporter.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar, Union, overload

from tensorcast import _native

AttributeValue = Union[str, bool, int, float]
_Function = TypeVar("_Function", bound=Callable[..., Any])

_INT64 = 1 << 63
_CO_COROUTINE = 0x80  # inspect.CO_COROUTINE; the module inspect is slow to import
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


class Span:
    """An open span. Only one thread at a time may use it. The span ends with its `with` block."""

    def __init__(self, name: str, parent: str | None, attributes: Mapping[str, AttributeValue]) -> None:
        self._native = _native.Span(_text(name), parent or "", _attributes(attributes))
        self.traceparent: str = self._native.traceparent or _new_traceparent(parent)

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """16 hexadecimal digits."""
        return self.traceparent[36:52]

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        self._native.set_attribute(_text(key), _value(value))

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(self, name: str, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        self._native.add_event(_text(name), _attributes(attributes))

    def set_error(self, error: BaseException | str) -> None:
        """Marks the span as failed, and records the error."""
        kind = type(error).__name__ if isinstance(error, BaseException) else "error"
        self._native.set_error(kind, _text(error))

    def _end(self) -> None:
        self._native.end()


class _JoinedSpan(Span):
    """A span of the program's own OpenTelemetry provider."""

    def __init__(self, span: Any) -> None:
        self._span = span
        self.traceparent = _traceparent_of(span.get_span_context())

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        self._span.set_attribute(key, value)

    def add_event(self, name: str, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        self._span.add_event(name, dict(attributes or {}))

    def set_error(self, error: BaseException | str) -> None:
        trace = sys.modules["opentelemetry.trace"]
        if isinstance(error, BaseException):
            self._span.record_exception(error)
        self._span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))

    def _end(self) -> None:
        self._span.end()


# The innermost of TensorCast's own spans, or the traceparent of a continued trace.
_current: contextvars.ContextVar[Span | str | None] = contextvars.ContextVar("tensorcast_span", default=None)


@contextlib.contextmanager
def span(name: str, attributes: Mapping[str, AttributeValue] | None = None) -> Iterator[Span]:
    """Begins a child of the current span, and makes it the current span until the block ends.

    An exception that leaves the block marks the span as failed and propagates.
    """
    begun, entered = _begin(name, attributes or {})
    with entered:
        try:
            yield begun
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                begun.set_error(error)
            raise
        finally:
            begun._end()


@overload
def traced(function: _Function) -> _Function: ...
@overload
def traced(*, name: str | None = None, attributes: Mapping[str, AttributeValue] | None = None) -> Callable[[_Function], _Function]: ...
def traced(function: Any = None, *, name: str | None = None, attributes: Mapping[str, AttributeValue] | None = None) -> Any:
    """Runs each call of a function or coroutine function in a span: `@traced`, or `@traced(name=...)`.

    The default name of the span is the function's qualified name.
    """
    if function is None:
        return functools.partial(traced, name=name, attributes=attributes)
    of = name or getattr(function, "__qualname__", None) or type(function).__qualname__

    if getattr(getattr(function, "__code__", None), "co_flags", 0) & _CO_COROUTINE:

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with span(of, attributes):
                return await function(*args, **kwargs)

        return run_async

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with span(of, attributes):
            return function(*args, **kwargs)

    return run


def current_span() -> Span | None:
    """Returns the innermost open span of this context; None without a span."""
    joined = _joined_span()
    if joined is not None:
        return _JoinedSpan(joined)
    current = _current.get()
    return current if isinstance(current, Span) else None


def set_attribute(key: str, value: AttributeValue) -> None:
    """Sets an attribute of the current span. Does nothing without a span."""
    if (current := current_span()) is not None:
        current.set_attribute(key, value)


def add_event(name: str, attributes: Mapping[str, AttributeValue] | None = None) -> None:
    """Adds an event to the current span. Does nothing without a span."""
    if (current := current_span()) is not None:
        current.add_event(name, attributes)


def set_error(error: BaseException | str) -> None:
    """Marks the current span as failed. Does nothing without a span."""
    if (current := current_span()) is not None:
        current.set_error(error)


def current_traceparent() -> str | None:
    """Returns the current span as a W3C traceparent, which the store's calls send; None without a span."""
    joined = _joined_span()
    if joined is not None:
        return _traceparent_of(joined.get_span_context())
    current = _current.get()
    return current.traceparent if isinstance(current, Span) else current


def current_trace_id() -> str | None:
    """Returns 32 hexadecimal digits; None without a span."""
    traceparent = current_traceparent()
    return traceparent[3:35] if traceparent else None


def current_span_id() -> str | None:
    """Returns 16 hexadecimal digits; None without a span."""
    traceparent = current_traceparent()
    return traceparent[36:52] if traceparent else None


def enabled() -> bool:
    """True if spans are recorded, by the program's own provider or by TensorCast after `start()`."""
    joined = _joined_span()
    return (joined is not None and joined.is_recording()) or _native.is_tracing()


def inject(carrier: MutableMapping[str, str]) -> None:
    """Writes the current span into the headers of a message, under "traceparent"."""
    traceparent = current_traceparent()
    if traceparent:
        carrier["traceparent"] = traceparent


@contextlib.contextmanager
def continued(carrier: Mapping[str, str] | str) -> Iterator[None]:
    """Continues the trace of a message's headers, or of a traceparent, in the spans and calls of the block.

    A missing or malformed traceparent is ignored, as W3C Trace Context requires.
    """
    if not isinstance(carrier, str):
        carrier = next((value for key, value in carrier.items() if key.lower() == "traceparent"), "")
    if not _TRACEPARENT.fullmatch(carrier):
        yield
        return
    token = _current.set(carrier)
    try:
        yield
    finally:
        _current.reset(token)


def start(
    endpoint: str = "", *, exporter: str = "", headers: Mapping[str, str] | None = None, service_name: str = ""
) -> Telemetry:
    """Exports the spans and metrics of this process, the store's client included, until `stop()`.

    endpoint, service_name: if empty, the value comes from the environment (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME,
        ...) or is the default of the OpenTelemetry SDK.
    exporter: "otlp_grpc", "otlp_http", "console" or "none". Empty: the environment, else "otlp_http" if the endpoint's port is
        4318, else "otlp_grpc".
    headers: headers of the export requests, by name.

    The environment also sets the other options of the SDK, such as OTEL_TRACES_SAMPLER.

    A program with its own OpenTelemetry provider needs start() only for the spans of the client library itself.

    Raises InvalidArgumentError with the name of the wrong option or environment variable, and FailedPreconditionError if
    telemetry is already started.
    """
    pairs = [f"{key}={value}" for key, value in (headers or {}).items()]
    return Telemetry(_native.start_telemetry(endpoint, exporter, pairs, service_name))


class Telemetry:
    """The export that `start()` began; a context manager that stops it."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def stop(self) -> None:
        """Sends the queued spans and metrics, for at most five seconds, and ends the export, even while a store is
        connected.
        """
        self._native.stop()

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _begin(name: str, attributes: Mapping[str, AttributeValue]) -> tuple[Span, contextlib.AbstractContextManager[Any]]:
    trace = sys.modules.get("opentelemetry.trace")  # imported already if the program uses it
    if trace is not None:
        joined = trace.get_tracer("tensorcast").start_span(name, context=_joined_context(), attributes=dict(attributes))
        if joined.get_span_context().is_valid:
            return _JoinedSpan(joined), trace.use_span(joined, record_exception=False, set_status_on_exception=False)
    begun = Span(name, current_traceparent(), attributes)
    return begun, _made_current(begun)


@contextlib.contextmanager
def _made_current(span: Span) -> Iterator[None]:
    token = _current.set(span)
    try:
        yield
    finally:
        _current.reset(token)


def _text(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode()


def _value(value: Any) -> AttributeValue:
    """Converts a value for an attribute: a number stays a number, other values become text."""
    if isinstance(value, (bool, float)):
        return value
    for of_kind, method in ((int, "__index__"), (float, "__float__")):
        if hasattr(value, method):
            try:
                number: int | float = of_kind(value)
            except Exception:  # for example, an array of several elements
                continue
            return number if isinstance(number, float) or -_INT64 <= number < _INT64 else str(number)
    return _text(value)


def _attributes(given: Mapping[str, AttributeValue] | None) -> dict[str, AttributeValue]:
    return {_text(key): _value(value) for key, value in (given or {}).items()}


def _joined_span() -> Any:
    """The current span of the program's own OpenTelemetry, or None."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    current = trace.get_current_span()
    return current if current.get_span_context().is_valid else None


def _joined_context() -> Any:
    """A context with the continued trace, if OpenTelemetry has no current span; else None."""
    current = _current.get()
    if not isinstance(current, str) or _joined_span() is not None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": current})


def _traceparent_of(context: Any) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _new_traceparent(parent: str | None) -> str:
    trace_id = parent[3:35] if parent else os.urandom(16).hex()
    return f"00-{trace_id}-{os.urandom(8).hex()}-01"
