#!/usr/bin/env python3
"""Sends a smoke run through real backends and reads it back.

Usage: backends_test.py TENSORCAST FOLDER CATALOGUE_PAGE PROMETHEUS PROMTOOL

- rotel, a collector from PyPI, takes OTLP over gRPC and forwards it over HTTP to a receiver in this process: one trace for each
  request, links, log lines with ids, metrics by name and label.
- rotel has no exporter for Prometheus, and Debian's Prometheus takes no OTLP. So the metrics are written as exposition text by
  the translator's rules (check_names.py) with the labels that collector-dev.yaml chooses. promtool checks that text, a real
  Prometheus scrapes it, and every panel and alert of FOLDER is asked there.

Exits with 77 (skipped) and the reason where a program or a package is missing.
"""
import collections
import gzip
import http.server
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

SKIPPED = 77
TENSORCAST, FOLDER, PAGE, PROMETHEUS, PROMTOOL = (pathlib.Path(argument) for argument in sys.argv[1:6])


def skip(reason):
    print("skipped: " + reason)
    sys.exit(SKIPPED)


for program in (PROMETHEUS, PROMTOOL):
    if not program.is_file():
        skip(f"{program} is missing; tools/setup.sh --tests fetches it")
try:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    import rotel
    import yaml
except ImportError as error:
    skip(f"{error}; tools/setup.sh --tests installs it")

ROTEL = pathlib.Path(rotel.__file__).with_name("rotel-agent")
sys.argv[1:] = []
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_names  # noqa: E402

WAIT = 60
COLLECTION = 5  # the smoke run's processes are gone by then; Prometheus needs two points of a counter for a rate


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def text_of(value):
    kind = value.WhichOneof("value")
    return "" if kind is None else str(getattr(value, kind))


def attributes_of(pairs):
    return {pair.key: text_of(pair.value) for pair in pairs}


class Server:
    """An HTTP server on a thread."""

    def __init__(self, post=None, get=None):
        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, body=b"", kind="application/x-protobuf"):
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                post(self.path, gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
                self.answer()

            def do_GET(self):
                self.answer(get(), "text/plain; version=0.0.4")

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class Received:
    """What the collector forwarded."""

    def __init__(self):
        self.lock = threading.Lock()
        self.spans = []  # (resource, scope, span)
        self.logs = []   # (resource, record)
        self.points = {}  # (metric's name, labels): (kind, unit, description, point)
        self.server = Server(post=self.take)

    def take(self, path, body):
        with self.lock:
            if path == "/v1/traces":
                for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    resource = attributes_of(of_resource.resource.attributes)
                    for of_scope in of_resource.scope_spans:
                        self.spans += [(resource, of_scope, span) for span in of_scope.spans]
            elif path == "/v1/logs":
                for of_resource in ExportLogsServiceRequest.FromString(body).resource_logs:
                    resource = attributes_of(of_resource.resource.attributes)
                    for of_scope in of_resource.scope_logs:
                        self.logs += [(resource, record) for record in of_scope.log_records]
            elif path == "/v1/metrics":
                for of_resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    resource = attributes_of(of_resource.resource.attributes)
                    for of_scope in of_resource.scope_metrics:
                        for metric in of_scope.metrics:
                            self.take_metric(resource, metric)

    def take_metric(self, resource, metric):
        kind = metric.WhichOneof("data")
        chosen = {key: value for key, value in resource.items() if key in CHOSEN}
        for point in getattr(metric, kind).data_points:
            labels = tuple(sorted({**attributes_of(point.attributes), **chosen}.items()))
            self.points[metric.name, labels] = (kind, metric, point)

    def await_that(self, condition):
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            with self.lock:
                if condition():
                    return True
            time.sleep(0.1)
        return False


CHOSEN = set(check_names.chosen_attributes((FOLDER / "collector-dev.yaml").read_text()))


def label_name(name):
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def escape(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def series(name, labels, value, **more):
    pairs = [f'{label_name(key)}="{escape(text)}"' for key, text in [*labels, *more.items()] if text != ""]
    return f"{name}{{{','.join(pairs)}}} {value}\n"


def exposition(points, advance):
    """The points as Prometheus's text, with counters that go on by `advance`: the processes behind them have ended."""
    by_metric = collections.defaultdict(list)
    for (name, labels), (kind, metric, point) in sorted(points.items(), key=lambda item: item[0]):
        by_metric[name].append((labels, kind, metric, point))
    text = ""
    for name, found in by_metric.items():
        _, kind, metric, _ = found[0]
        counter = kind == "sum" and metric.sum.is_monotonic
        kind_word = "counter" if counter else kind
        translated = check_names.translate(name, kind_word, metric.unit, check_names.WITHOUT_SUFFIXES)
        shown = "histogram" if kind == "histogram" else "counter" if counter else "gauge"
        text += f"# HELP {translated} {metric.description}\n# TYPE {translated} {shown}\n"
        for labels, _, _, point in found:
            if kind == "histogram":
                total = 0
                for bound, count in zip([*point.explicit_bounds, None], point.bucket_counts):
                    total += count
                    text += series(translated + "_bucket", labels, total + advance,
                                   le="+Inf" if bound is None else repr(bound))
                text += series(translated + "_sum", labels, point.sum + advance)
                text += series(translated + "_count", labels, point.count + advance)
            else:
                value = point.as_double if point.WhichOneof("value") == "as_double" else point.as_int
                text += series(translated, labels, value + (advance if counter else 0))
    return text


class Backends(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        scratch = pathlib.Path(cls.scratch.name)
        cls.received = Received()
        cls.processes = []
        grpc, http_port = free_port(), free_port()
        cls.start(ROTEL, "start", "--pid-file", scratch / "rotel.pid", "--log-file", scratch / "rotel.log",
                  "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}", "--otlp-http-endpoint", f"127.0.0.1:{http_port}",
                  "--exporter", "otlp", "--otlp-exporter-protocol", "http",
                  "--otlp-exporter-endpoint", f"http://127.0.0.1:{cls.received.server.port}")
        cls.await_port(grpc)
        smoke = subprocess.run([TENSORCAST, "otel-smoke", "--endpoint", f"http://127.0.0.1:{grpc}"],
                               capture_output=True, text=True, timeout=120)
        assert smoke.returncode == 0, smoke.stdout + smoke.stderr
        cls.traces = dict(reversed(line.rsplit(None, 1)) for line in smoke.stdout.splitlines()
                          if re.search(r" [0-9a-f]{32}$", line))

    @classmethod
    def tearDownClass(cls):
        for process in cls.processes:
            process.terminate()
        for process in cls.processes:
            process.wait(timeout=30)
        cls.received.server.close()
        cls.scratch.cleanup()

    @classmethod
    def start(cls, *command):
        cls.processes.append(subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL,
                                              stderr=subprocess.DEVNULL))

    @classmethod
    def await_port(cls, port):
        deadline = time.monotonic() + WAIT
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except OSError:
                assert time.monotonic() < deadline, f"nothing listens on port {port}"
                time.sleep(0.05)

    def await_ready(self, url):
        deadline = time.monotonic() + WAIT
        while True:
            try:
                urllib.request.urlopen(url).close()
                return
            except urllib.error.HTTPError:
                self.assertLess(time.monotonic(), deadline, f"{url} is not ready")
                time.sleep(0.1)

    def spans_of(self, trace_id):
        return [span for _, _, span in self.received.spans if span.trace_id.hex() == trace_id]

    def test_each_request_is_one_trace_with_links(self):
        self.assertEqual(len(self.traces), 3, self.traces)
        linked = set()
        for trace_id, what in self.traces.items():
            self.assertTrue(self.received.await_that(lambda: len(self.spans_of(trace_id)) > 3), what)
            spans = self.spans_of(trace_id)
            ids = {span.span_id for span in spans}
            roots = [span.name for span in spans if span.parent_span_id not in ids]
            self.assertEqual(len(roots), 1, f"{what}: {roots}")
            self.assertTrue(roots[0].startswith("Client/"), roots)
            linked |= {span.name for span in spans if span.links}
        self.assertIn("P2P/Serve", linked)

    def test_spans_name_their_scope_and_key(self):
        self.assertTrue(self.received.await_that(lambda: self.received.spans))
        for _, scope, _ in self.received.spans:
            self.assertNotEqual(scope.scope.version, "")
            self.assertTrue(scope.schema_url.startswith("https://opentelemetry.io/schemas/"), scope.schema_url)
        keys = {attributes_of(span.attributes).get("tc.key") for _, _, span in self.received.spans
                if span.name in ("Client/Get", "Client/Put")}
        self.assertTrue(keys - {None}, keys)

    def test_log_lines_carry_ids_of_the_traces(self):
        self.assertTrue(self.received.await_that(
            lambda: {record.trace_id.hex() for _, record in self.received.logs} & set(self.traces)))
        for _, record in self.received.logs:
            self.assertIn(len(record.span_id), (0, 8))

    def test_metrics_have_names_of_the_catalogue_and_stable_labels(self):
        catalogue = check_names.read_catalogue(PAGE)
        self.assertTrue(self.received.await_that(
            lambda: {"tc_p2p_bytes_total", "tc_global_store_nodes"} <= {name for name, _ in self.received.points}))
        for name, labels in self.received.points:
            self.assertIn(name, catalogue)
            self.assertLessEqual({key for key, _ in labels} - CHOSEN, catalogue[name][1], name)
        served = [dict(labels) for name, labels in self.received.points if name == "tc_pool_capacity_bytes"]
        self.assertEqual({labels["tc.node.name"] for labels in served}, {"node-0", "node-1"})
        # A daemon's id is its node's, which is in the smoke run's spans.
        nodes = {attributes_of(span.attributes).get("tc.node.id") for _, _, span in self.received.spans}
        self.assertLessEqual({labels["service.instance.id"] for labels in served}, nodes)

    def test_prometheus_answers_every_panel_and_alert(self):
        self.assertTrue(self.received.await_that(
            lambda: {"tc_p2p_bytes_total", "tc_global_store_nodes"} <= {name for name, _ in self.received.points}))
        with self.received.lock:
            points = dict(self.received.points)
        checked = subprocess.run([PROMTOOL, "check", "metrics"], input=exposition(points, 0), capture_output=True,
                                 text=True)
        self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""))
        began = time.monotonic()
        metrics = Server(get=lambda: exposition(points, int(time.monotonic() - began)).encode())
        self.addCleanup(metrics.close)
        scratch = pathlib.Path(self.scratch.name)
        config = scratch / "prometheus.yaml"
        config.write_text(yaml.safe_dump({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [str(FOLDER / "alerts.yaml")],
            "scrape_configs": [{"job_name": "tensorcast", "honor_labels": True,
                                "static_configs": [{"targets": [f"127.0.0.1:{metrics.port}"]}]}]}))
        port = free_port()
        self.start(PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={scratch / 'data'}",
                   f"--web.listen-address=127.0.0.1:{port}")
        self.await_port(port)
        self.await_ready(f"http://127.0.0.1:{port}/-/ready")

        def ask(path, **query):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}") as answer:
                return json.load(answer)["data"]

        deadline = time.monotonic() + WAIT
        while not ask("query", query=f"count_over_time(tc_process_threads[1m]) > {COLLECTION}")["result"]:
            self.assertLess(time.monotonic(), deadline, "Prometheus does not scrape")
            time.sleep(0.2)
        silent = []
        for title, expression, _ in check_names.expressions_of(FOLDER):
            if expression.startswith("label_values("):
                continue
            # As Grafana fills the variables in when all is chosen.
            answer = ask("query", query=re.sub(r"\$(cluster|zone|node)\b", ".*", expression))
            if not answer["result"]:
                silent.append(title)
        panels = [panel["title"] for panel in check_names.read_dashboard(FOLDER)["panels"]]
        self.assertLessEqual(set(silent) & set(panels), MAY_BE_SILENT, "panels without any answer")
        rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
        self.assertTrue(rules)
        deadline = time.monotonic() + WAIT
        while any(rule["health"] == "unknown" for rule in rules):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.2)
            rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
        self.assertEqual({rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"}, {})


# Panels of what a smoke run does not do.
MAY_BE_SILENT = {"Evictions and refused allocations", "Errors", "Served while filling",
                 "Sources in use; chunks asked for again", "GPUs", "Broken: GPUs, packed files, replicas",
                 "Certificates: time left", "Transfers by rack: 95th percentile of the time",
                 "Transfers by rack: median rate", "Stragglers: longest transfer of the slowest nodes"}

if __name__ == "__main__":
    unittest.main()
