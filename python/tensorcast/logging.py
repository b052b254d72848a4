"""Adds trace ids to the records of Python's own logging.

    tensorcast.logging.install()
    logging.basicConfig(format=tensorcast.logging.FORMAT)

After install() every record has `trace_id`, `span_id` and `trace_sampled` of the span that was current when the record was
made: a span of tensorcast.tracing or of the program's own OpenTelemetry. Without a span these are "", "" and False.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tensorcast import tracing

FORMAT = "%(asctime)s %(levelname)s %(name)s [trace_id=%(trace_id)s span_id=%(span_id)s] %(message)s"

_replaced: Callable[..., logging.LogRecord] | None = None


def install() -> None:
    """Wraps the record factory of the process and calls the previous one, so other wrappers keep working. Idempotent."""
    global _replaced
    if _replaced is None:
        _replaced = logging.getLogRecordFactory()
        logging.setLogRecordFactory(_make_record)


def uninstall() -> None:
    """Restores the previous record factory, unless other code has wrapped this one meanwhile."""
    global _replaced
    if _replaced is not None and logging.getLogRecordFactory() is _make_record:
        logging.setLogRecordFactory(_replaced)
        _replaced = None


def _make_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
    assert _replaced is not None
    record = _replaced(*args, **kwargs)
    traceparent = tracing.current_traceparent() or ""
    record.trace_id = traceparent[3:35]
    record.span_id = traceparent[36:52]
    record.trace_sampled = bool(traceparent) and int(traceparent[53:55], 16) & 1 == 1
    return record
