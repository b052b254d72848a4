#!/usr/bin/env python3
"""Measures imports from an object store behind a link, beside other readers of the same object: `make bench-objects`.

Two network namespaces are the hosts, joined by a pair of virtual devices that send at `--rate` (bench_link.py). On host 0 a small server of
this script has one object and sends it with sendfile, so that it takes little of the processors. On host 1 a daemon imports it. Each other
reader follows an import of its own: a pair. The readers:

    curl    8 processes, each with an eighth of the object, into /dev/null
    boto3   its transfer manager, into a file in memory
    s5cmd   into a file in memory
    runai   Run:ai's streamer, into tensors; needs torch

The clocks of boto3 and runai begin when their modules are loaded. The other clocks have the whole commands, and the import's has the
publication. CPU seconds have no kernel threads; the server's are not in any. Needs root, `ip`, `tc` and, of the readers, those to compare with.

    tools/workshop/bench/objects.py --binary build/release/bin/tensorcast [--runs 5] [--gib 2] [--rate 5gbit] [--only curl ...]
"""

import argparse
import contextlib
import datetime
import http.server
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from bench_link import ADDRESSES, Link, run

PORT = 9000
BUCKET, NAME = "bucket", "model.safetensors"
URI = f"s3://{BUCKET}/{NAME}"
ENDPOINT = f"http://{ADDRESSES[0]}:{PORT}"
ENVIRONMENT = {**{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RUNAI_"))},
               "AWS_ENDPOINT_URL": ENDPOINT, "AWS_ENDPOINT_URL_S3": ENDPOINT, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
               "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
               "RUNAI_STREAMER_S3_ENDPOINT": ENDPOINT, "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0"}
ASKED = {"curl": 0.85, "boto3": 1.5, "runai": 1.5, "s5cmd": 1.0}
MAX_BEYOND_MIB = 64


class Object(http.server.BaseHTTPRequestHandler):
    """The one object, for requests with any signature: what signing costs a reader is measured, and no check of it is."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    file = None
    size = 0

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = self.path.partition("?")[0]
        if path.strip("/") == BUCKET:
            return self.list()
        if path.endswith(".tcmanifest"):  # nothing lies beside the model
            self.send_response(404)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        first, last, status = 0, self.size - 1, 200
        if (wanted := self.headers.get("Range")) is not None:
            begin, _, end = wanted.removeprefix("bytes=").partition("-")
            first, last, status = int(begin), min(int(end or last), last), 206
        self.send_response(status)
        self.send_header("ETag", '"one"')
        self.send_header("Last-Modified", "Thu, 26 Nov 2026 00:00:00 GMT")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last - first + 1))
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{self.size}")
        self.end_headers()
        self.wfile.flush()
        while body and first <= last:
            first += os.sendfile(self.connection.fileno(), self.file, first, last - first + 1)

    def list(self):
        text = (f'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{BUCKET}</Name><Prefix></Prefix>'
                f"<KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated><Contents><Key>{NAME}</Key>"
                f'<LastModified>2026-11-26T00:00:00.000Z</LastModified><ETag>"one"</ETag><Size>{self.size}</Size>'
                "<StorageClass>STANDARD</StorageClass></Contents></ListBucketResult>").encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def serve(path, address):
    Object.file = os.open(path, os.O_RDONLY)
    Object.size = os.fstat(Object.file).st_size
    http.server.ThreadingHTTPServer((address, PORT), Object).serve_forever()


def read_by_boto3(folder):
    import boto3
    from botocore.config import Config
    s3 = boto3.client("s3", endpoint_url=ENDPOINT, config=Config(s3={"addressing_style": "path"}))
    return lambda: s3.download_file(BUCKET, NAME, f"{folder}/boto3")


def read_by_runai(_):
    from runai_model_streamer import SafetensorsStreamer

    def read():
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(URI)
            for _name, tensor in streamer.get_tensors():
                tensor.numel()
    return read


def measure_here(reader, folder):
    """In a process of its own: prints the seconds and CPU seconds of one read, without the loading of modules."""
    read = {"boto3": read_by_boto3, "runai": read_by_runai}[reader](folder)
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    read()
    took, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime]))


def cpu_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_of(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def beyond_pools(pid):
    """Resident bytes of a process without shared memory, which is its pools."""
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(status[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile"))


class Peak:
    """The largest resident memory beyond the pools while it is open."""

    def __init__(self, pid):
        self.pid, self.bytes, self.over = pid, 0, threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.over.wait(0.01):
            self.bytes = max(self.bytes, beyond_pools(self.pid))

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class Bench:
    def __init__(self, options, link, folder):
        self.options, self.link, self.folder = options, link, folder
        self.binary, self.size = options.binary, 0
        self.memory = f"/dev/shm/{pathlib.Path(folder).name}"
        self.processes = []
        self.peaks = []

    def start(self, host, log, *command):
        with open(f"{self.folder}/{log}.log", "wb") as output:
            self.processes.append(subprocess.Popen(self.link.command(host, *command), stdout=output, stderr=output,
                                                   env=ENVIRONMENT))
        return self.processes[-1]

    def __enter__(self):
        os.mkdir(self.memory)
        path = f"{self.folder}/{NAME}"
        run(self.binary, "make-model", path, "--size", f"{self.options.gib}GiB")
        self.size = os.path.getsize(path)
        self.start(0, "server", sys.executable, "-B", __file__, "--serve", path)
        pool = self.size + (512 << 20)
        settings = ["daemon.name=node", f"daemon.state_dir={self.folder}/node", "daemon.device_runtime=none", f"daemon.host_pool={pool}",
                    f"daemon.origins=[s3://{BUCKET}/]"]
        self.daemon = self.start(1, "daemon", self.binary, "daemon", *[word for setting in settings for word in ("--set", setting)])
        self.until("a status of the daemon", lambda: self.tensorcast("status").returncode == 0)
        self.until("the daemon's pool", lambda: self.pool_bytes() >= pool)
        self.idle = beyond_pools(self.daemon.pid)
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
        shutil.rmtree(self.memory)

    @staticmethod
    def until(what, holds):
        deadline = time.monotonic() + 120
        while not holds():
            if time.monotonic() > deadline:
                raise SystemExit(f"objects.py: {what}: not within 120 s")
            time.sleep(0.05)

    def pool_bytes(self):
        status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{self.daemon.pid}/status").read_text().splitlines())
        return int(status["RssShmem"].split()[0]) * 1024

    def tensorcast(self, *arguments):
        return subprocess.run([self.binary, *arguments, "--daemon", f"unix:{self.folder}/node/daemon.sock"], capture_output=True, text=True,
                              check=False)

    def read_by_import(self):
        children, daemon, begin = cpu_of_children(), cpu_of(self.daemon.pid), time.monotonic()
        with Peak(self.daemon.pid) as peak:
            done = self.tensorcast("put", URI, "--json")
        took = time.monotonic() - begin
        if done.returncode != 0:
            raise SystemExit(f"objects.py: {done.stderr}")
        cpu = cpu_of_children() - children + cpu_of(self.daemon.pid) - daemon
        self.peaks.append(peak.bytes)
        put = json.loads(done.stdout)
        for arguments in (["replica", "rm", put["replica"]["replica_id"], "--force"], ["rm", put["artifact_id"], "--force"]):
            if (removed := self.tensorcast(*arguments)).returncode != 0:
                raise SystemExit(f"objects.py: {removed.stderr}")
        return took, cpu

    def read_by(self, reader):
        children, begin = cpu_of_children(), time.monotonic()
        if reader in ("boto3", "runai"):
            done = subprocess.run(self.link.command(1, sys.executable, "-B", __file__, "--read", reader, self.memory), capture_output=True,
                                  text=True, check=False, env=ENVIRONMENT)
            if done.returncode != 0:
                raise SystemExit(f"objects.py: {reader}: {done.stderr[-3000:]}")
            result = tuple(json.loads(done.stdout.splitlines()[-1]))
        elif reader == "s5cmd":
            subprocess.run(self.link.command(1, "s5cmd", "--endpoint-url", ENDPOINT, "cp", "--concurrency", "8", URI, f"{self.memory}/s5cmd"), check=True,
                           stdout=subprocess.DEVNULL, env=ENVIRONMENT)
            result = time.monotonic() - begin, cpu_of_children() - children
        else:
            part = -(-self.size // 8)
            curls = [subprocess.Popen(self.link.command(1, "curl", "--silent", "--fail", "--output", "/dev/null", "--range",
                                                        f"{i * part}-{min(self.size, (i + 1) * part) - 1}", f"{ENDPOINT}/{BUCKET}/{NAME}"))
                     for i in range(8)]
            if any([curl.wait() for curl in curls]):
                raise SystemExit("objects.py: curl failed")
            result = time.monotonic() - begin, cpu_of_children() - children
        for file in os.scandir(self.memory):
            os.remove(file.path)
        return result


def available(reader):
    modules = {"boto3": "boto3", "runai": "runai_model_streamer"}
    if reader not in modules:
        return shutil.which(reader) is not None
    return subprocess.run([sys.executable, "-c", f"import {modules[reader]}"], capture_output=True, check=False).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/tensorcast")
    parser.add_argument("--rate", default="5gbit", help="as tc has it")
    parser.add_argument("--burst", default="2mb")
    parser.add_argument("--gib", type=int, default=2, help="of the object")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=sorted(ASKED), help="readers to compare with")
    parser.add_argument("--serve", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--address", default=ADDRESSES[0], help=argparse.SUPPRESS)
    parser.add_argument("--read", nargs=2, metavar=("READER", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.address)
    if options.read:
        return measure_here(*options.read)
    options.binary = os.path.abspath(options.binary)
    os.environ["PATH"] = ENVIRONMENT["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    readers = options.only or list(ASKED)
    for reader in [reader for reader in readers if not available(reader)]:
        print(f"{reader}: not installed here")
        readers.remove(reader)
    with tempfile.TemporaryDirectory(prefix="tc-objects-") as folder, Link(options.rate, options.burst) as link, \
         Bench(options, link, folder) as bench:
        bench.read_by_import()  # a warm-up: opens connections and touches memory
        bench.peaks.clear()
        pairs = {reader: [] for reader in readers}
        for _ in range(options.runs):
            for reader in readers:
                pairs[reader].append((bench.read_by_import(), bench.read_by(reader)))
        gb = bench.size / 1e9
        print(f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, {gb:.2f} GB, {options.rate}, {options.runs} pairs each, "
              f"load {os.getloadavg()[0]:.1f}")
        print(f"{'beside':8}{'import GB/s':>20}{'GB/s':>20}{'ratio of pairs':>22}{'asked':>7}{'CPU s/GB':>10}{'import':>8}")
        for reader, rows in pairs.items():
            ours, theirs = [gb / row[0][0] for row in rows], [gb / row[1][0] for row in rows]
            ratios = [our / their for our, their in zip(ours, theirs)]
            columns = [f"{statistics.median(one):.2f} ({min(one):.2f}-{max(one):.2f})" for one in (ours, theirs, ratios)]
            cpu = [statistics.median(row[side][1] for row in rows) / gb for side in (1, 0)]
            print(f"{reader:8}{columns[0]:>20}{columns[1]:>20}{columns[2]:>22}{ASKED[reader]:7.2f}{cpu[0]:10.2f}{cpu[1]:8.2f}")
        print(f"memory of the daemon beyond its pool: idle {bench.idle / 2**20:.1f} MiB, largest during an import "
              f"{max(bench.peaks) / 2**20:.1f} MiB, asked {MAX_BEYOND_MIB}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
