#!/usr/bin/env python3
"""Tests check_names.py: it must report each fault that is put into a copy of the folder.

Usage: check_names_test.py CATALOGUE_PAGE FOLDER.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PAGE = pathlib.Path(sys.argv[1])
FOLDER = pathlib.Path(sys.argv[2])

# File, text in the file, its replacement, text of the report.
FAULTS = [
    ("alerts.yaml", "tc_pool_pinned_bytes /", "tc_pool_held_bytes /", "no metric tc_pool_held_bytes"),
    ("alerts.yaml", "TensorCastNoNodes", "TensorCastNodeless", "does not explain the alert TensorCastNodeless"),
    ("alerts.yaml", "TensorCastNoNodes", "TensorCastNodeless", "explains the alert TensorCastNoNodes, which does not exist"),
    ("alerts.yaml", "$labels.lane", "$labels.link", "no label link"),
    ("alerts.yaml", 'outcome="failed"', 'result="failed"', "tc_p2p_pulls_total has no label result"),
    ("alerts.yaml", "#tensorcastnonodes", "#alerts", "TensorCastNoNodes does not link to its section"),
    ("alerts.yaml", "by (tc_cluster, lane)", "by (tc_fleet, lane)", "no label tc_fleet"),
    ("alerts.yaml", "tc_rpc_requests_total", "tc_rpc_requests_total_bucket", "no metric tc_rpc_requests_total_bucket"),
    ("grafana/dashboard.json", "tc_p2p_bytes_total", "tc_p2p_byte_total", "no metric tc_p2p_byte_total"),
    ("grafana/dashboard.json", "{{lane}} {{direction}}", "{{lane}} {{way}}", "no label way"),
    ("grafana/dashboard.json", "by (lane, direction)", "by (lane, way)", "no label way"),
    ("grafana/dashboard.json", '"uid": "prometheus"', '"uid": "thanos"', "no data source thanos"),
    ("collector-dev.yaml", "WithoutSuffixes", "WithSuffixes", "would add suffixes"),
    ("collector-dev.yaml", "translation_strategy: UnderscoreEscapingWithoutSuffixes", "add_metric_suffixes: false",
     "would add suffixes"),
    ("collector-dev.yaml", '"service.name", ', '"service.name", "process.pid", ', "new series with each restart"),
    ("collector-dev.yaml", "keep_keys(resource.attributes", "keep_keys(attributes", "labels of all resource attributes"),
    ("collector-grafana.yaml", "memory_limiter, transform/labels, batch", "memory_limiter, batch", "did not choose"),
    ("grafana/dashboard.json", "tc_process_threads, tc_cluster", "tc_process_thread, tc_cluster", "no metric tc_process_thread"),
    ("collector-dev.yaml", "0.132.0", "0.133.0", "the oldest version"),
    ("collector-grafana.yaml", "WithoutSuffixes", "WithSuffixes", "would add suffixes"),
    ("collector-grafana.yaml", "0.132.0", "some version", "the oldest version"),
    ("compose-grafana.yaml", "collector-contrib:0.155.0", "collector-contrib:0.131.1", "does not know"),
    ("collector-dev.yaml", "exporters: [debug, prometheus]", "exporters: [debug, prom]", "exporters prom,"),
    ("compose-grafana.yaml", "./grafana/tempo.yaml", "./grafana/tempe.yaml", "which is not there"),
    ("compose-grafana.yaml", "grafana/loki:3.2.0", "grafana/loki:latest", "whatever grafana/loki is"),
    ("compose-signoz.yaml", "schema: {condition", "scheme: {condition", "waits for scheme"),
    ("compose-signoz.yaml", "- zookeeper:/", "- keeper:/", "mounts the volume keeper"),
    ("signoz/collector.yaml", "exporters: [clickhouselogsexporter,", "exporters: [logs,", "exporters logs,"),
]

# Text in the catalogue, its replacement, text of the report.
FAULTY_UNITS = [
    ("| `tc_global_store_nodes` | gauge | {node} |", "| `tc_global_store_nodes` | gauge | 1 |",
     "tc_global_store_nodes_ratio with UnderscoreEscapingWithSuffixes"),
    ("| `tc_rpc_in_flight` | up-down counter | {call} |", "| `tc_rpc_in_flight` | up-down counter | 1 |",
     "tc_rpc_in_flight_ratio with"),
    ("| histogram | {bytes_per_second} |", "| histogram | By/s |", "bytes_per_second_per_second with"),
    ("| `tc_leader_lease_seconds` | gauge | s |", "| `tc_leader_lease_seconds` | gauge | ms |",
     "tc_leader_lease_seconds_milliseconds with"),
    ("| `tc_tickets_expired_total` | counter | {ticket} |", "| `tc_tickets_expired_total` | counter | ticket |",
     "tc_tickets_expired_ticket_total with"),
    ("| `tc_pool_used_bytes` |", "| `tc_pool_bytes_used` |", "does not end in its unit, bytes"),
    ("| `tc_tickets_expired_total` |", "| `tc_tickets_total_expired` |", "tc_tickets_expired_total with"),
    ("| `tc_rpc_connections` |", "| `tc_rpc__connections` |",
     "tc_rpc_connections with UnderscoreEscapingWithoutSuffixes"),
    ("| `tc_gpu_utilization_ratio` |", "| `tc_gpu_utilization` |", "tc_gpu_utilization_ratio with"),
    # The metrics of the dashboard and the rules are looked up under the translated names.
    ("| `tc_global_store_nodes` | gauge | {node} |", "| `tc_global_store_nodes` | gauge | 1 |",
     "TensorCastNoNodes with UnderscoreEscapingWithSuffixes: no metric tc_global_store_nodes"),
]


def check(folder, page=PAGE):
    script = pathlib.Path(__file__).with_name("check_names.py")
    return subprocess.run([sys.executable, "-B", script, page, folder], capture_output=True, text=True)


class CheckNames(unittest.TestCase):
    def test_the_folder_is_correct(self):
        result = check(FOLDER)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_each_fault_is_found(self):
        for name, right, wrong, said in FAULTS:
            with self.subTest(file=name, wrong=wrong), tempfile.TemporaryDirectory() as scratch:
                copy = pathlib.Path(shutil.copytree(FOLDER, pathlib.Path(scratch) / "otel"))
                text = (copy / name).read_text()
                self.assertIn(right, text)
                (copy / name).write_text(text.replace(right, wrong))
                result = check(copy)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn(said, result.stdout)

    def test_each_unit_that_would_change_a_name_is_found(self):
        text = PAGE.read_text()
        for right, wrong, said in FAULTY_UNITS:
            with self.subTest(wrong=wrong, said=said), tempfile.TemporaryDirectory() as scratch:
                self.assertIn(right, text)
                page = pathlib.Path(scratch) / "metrics.md"
                page.write_text(text.replace(right, wrong))
                result = check(FOLDER, page)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn(said, result.stdout)

    def test_a_file_that_does_not_parse_is_an_error(self):
        for name, text in (("alerts.yaml", "a: [b"), ("grafana/dashboard.json", "{"), ("signoz/clickhouse.xml", "<a>")):
            with self.subTest(file=name), tempfile.TemporaryDirectory() as scratch:
                copy = pathlib.Path(shutil.copytree(FOLDER, pathlib.Path(scratch) / "otel"))
                (copy / name).write_text(text)
                self.assertNotEqual(check(copy).returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
