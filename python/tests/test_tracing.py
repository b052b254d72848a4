"""Spans of TensorCast and of the program's OpenTelemetry, and one trace through the daemons."""

import asyncio
import functools
import json
import logging
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from cluster import Cluster

import tensorcast as tc
import tensorcast.logging
from tensorcast import tracing


def run(program):
    """Runs a program in a process of its own, for settings that a process can make only once."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_spans_nest_and_end():
    assert tracing.current_span() is None and tracing.current_traceparent() is None and tracing.current_trace_id() is None
    with tracing.span("outer", {"a": 1}) as outer:
        assert tracing.current_trace_id() == outer.trace_id
        with tracing.span("inner") as inner:
            assert inner.trace_id == outer.trace_id and inner.span_id != outer.span_id
            assert tracing.current_span_id() == inner.span_id
            tracing.set_attribute("key", "value")
            tracing.add_event("event", {"n": 1})
            tracing.set_error("wrong")
        assert tracing.current_span() is outer
    assert tracing.current_span() is None


def test_an_exception_passes_through_a_span():
    with pytest.raises(ValueError, match="mine"):
        with tracing.span("failing"):
            raise ValueError("mine")
    assert tracing.current_span() is None


def test_functions_and_coroutines_are_traced():
    @tracing.traced
    def plain(n):
        return n, tracing.current_trace_id()

    @tracing.traced(name="named", attributes={"a": True})
    async def coroutine(n):
        await asyncio.sleep(0)
        return n, tracing.current_trace_id()

    assert plain(1)[0] == 1 and plain(1)[1]
    assert plain.__name__ == "plain"

    async def both():
        return await asyncio.gather(coroutine(1), coroutine(2))

    (one, first), (two, second) = asyncio.run(both())
    assert (one, two) == (1, 2) and first and second and first != second


def test_no_value_of_an_attribute_raises():
    class Odd:
        def __str__(self):
            return "odd \ud800"

    with tracing.span("odd \ud800", {"none": None, "array": np.arange(2), 3: Odd(), "of numpy": np.float32(1)}) as span:
        span.set_attribute("huge", 1 << 70)
        span.add_event("\ud800", {"list": [1, 2]})
        span.set_error("\ud800")


def test_builtins_and_partials_are_traced():
    assert tracing.traced(len)([1, 2]) == 2
    assert tracing.traced(functools.partial(int, base=2))("11") == 3


def test_a_trace_continues_from_a_message():
    headers = {}
    with tracing.span("sender") as sender:
        tracing.inject(headers)
    with tracing.continued({"Traceparent": headers["traceparent"]}):
        with tracing.span("receiver") as receiver:
            assert receiver.trace_id == sender.trace_id
    for malformed in ("", "00-12-34-01", "nonsense"):
        with tracing.continued(malformed):
            assert tracing.current_traceparent() is None


def test_log_records_carry_the_ids():
    tensorcast.logging.install()
    tensorcast.logging.install()
    try:
        make = logging.getLogRecordFactory()
        outside = make("name", logging.INFO, "file", 1, "text", (), None)
        assert (outside.trace_id, outside.span_id, outside.trace_sampled) == ("", "", False)
        with tracing.span("s") as span:
            inside = make("name", logging.INFO, "file", 1, "text", (), None)
        assert (inside.trace_id, inside.span_id, inside.trace_sampled) == (span.trace_id, span.span_id, True)
        assert span.trace_id in logging.Formatter(tensorcast.logging.FORMAT).format(inside)
    finally:
        tensorcast.logging.uninstall()
    assert not hasattr(logging.getLogRecordFactory()("n", 1, "f", 1, "t", (), None), "trace_id")


def test_one_request_is_one_trace_through_both_daemons():
    with Cluster() as cluster:
        with tc.connect(cluster.address("a")) as a, tc.connect(cluster.address("b")) as b:
            a.put({"x": np.ones(1 << 20, np.float32)}, key="traced")
            with tracing.span("load") as span:
                b.get("traced").close()
            assert b.explain().hops[0].transfer.trace_id == span.trace_id
        for name in ("a", "b", "store"):
            cluster.stop(name)
        for name in ("a", "b"):
            events = json.loads(cluster.trace_file(name).read_text())
            assert [e for e in events if span.trace_id in json.dumps(e)], f"node {name} has no span of the trace"


def test_spans_are_exported_once_started():
    printed = run("""
        from tensorcast import tracing
        import tensorcast as tc
        assert not tracing.enabled()
        with tracing.start(exporter="console", service_name="mine"):
            assert tracing.enabled()
            try:
                tracing.start(exporter="console")
                raise SystemExit("started twice")
            except tc.FailedPreconditionError:
                pass
            try:
                with tracing.span("exported", {"mine.text": "t", "mine.number": 2.5}) as span:
                    span.add_event("happened", {"mine.kind": "k"})
                    raise ValueError("boo")
            except ValueError:
                pass
        assert not tracing.enabled()
        print("id", span.trace_id)
    """)
    for text in ("exported", printed.split("id ")[1][:32], "mine.text", "2.5", "happened", "mine.kind", "boo", "ValueError"):
        assert text in printed, text


def test_an_invalid_exporter_is_named():
    with pytest.raises(tc.InvalidArgumentError, match="pigeons"):
        tracing.start(exporter="pigeons")


def test_spans_join_the_programs_own_opentelemetry():
    pytest.importorskip("opentelemetry.sdk")
    run("""
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from tensorcast import tracing
        kept = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(kept))
        trace.set_tracer_provider(provider)
        with trace.get_tracer("program").start_as_current_span("theirs") as theirs:
            assert tracing.enabled()
            assert tracing.current_trace_id() == f"{theirs.get_span_context().trace_id:032x}"
            try:
                with tracing.span("ours", {"a": 1}) as ours:
                    tracing.add_event("event", {"b": 2})
                    assert trace.get_current_span().get_span_context().span_id == int(ours.span_id, 16)
                    raise KeyError("gone")
            except KeyError:
                pass
        with tracing.continued("00-" + "1" * 32 + "-" + "2" * 16 + "-01"):
            with tracing.span("continued") as continued:
                assert continued.trace_id == "1" * 32
        spans = {span.name: span for span in kept.get_finished_spans()}
        assert spans["ours"].parent.span_id == spans["theirs"].context.span_id
        assert spans["ours"].attributes == {"a": 1}
        assert [event.name for event in spans["ours"].events] == ["event", "exception"]
        assert not spans["ours"].status.is_ok
        assert spans["continued"].parent.span_id == int("2" * 16, 16)
    """)


def test_opentelemetry_without_a_provider_changes_nothing():
    pytest.importorskip("opentelemetry.trace")
    run("""
        from opentelemetry import trace
        from tensorcast import tracing
        assert tracing.current_traceparent() is None
        with tracing.span("alone") as span:
            assert tracing.current_trace_id() == span.trace_id
    """)
