"""Engines with the URI of a model as its name: two of them, on two nodes, start at once, and one node reads the model."""

import json
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest
from cluster import Cluster
from object_servers import BUCKET, Bucket, Hub

import tensorcast as tc
from tensorcast.plugins.options import LoaderOptions

safetensors = pytest.importorskip("safetensors.numpy")

START_SECONDS = 60
TENSORS = {"layer.weight": np.ones((1 << 20, 2), np.float32), "layer.bias": np.arange(4, dtype=np.float32)}
SUMS = {"layer.weight": float(2 << 20), "layer.bias": 6.0}
FILES = {"model.safetensors": safetensors.save(TENSORS), "config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}"}
WEIGHTS_BYTES = len(FILES["model.safetensors"])
HEADER_BYTES = 1 << 16  # what an import may read of a model before it reads its tensors, at most


def hold_until_both_ask(server):
    """Holds the tensors back until both nodes have read what lies there: so neither import can end before the other begins."""
    asked, both, reply = [], threading.Event(), server.reply

    def hold(target, headers):
        status, about, content = reply(target, headers)
        if "model.safetensors" in target and 0 < len(content) <= HEADER_BYTES:
            asked.append(target)
            if len(asked) >= 2 * 2:
                both.set()
        elif len(content) > HEADER_BYTES and "Range" in headers:
            assert both.wait(START_SECONDS)
        return status, about, content

    server.reply = hold


@pytest.fixture
def outside(request, tmp_path):
    """A server, the URI of the model that lies there, and two nodes that may read it."""
    objects = {f"llama/{name}": content for name, content in FILES.items()}
    made, uri, origins = {"hf": (Hub("org/name", FILES), "hf://org/name", "hf://org/"),
                          "s3": (Bucket(objects), f"s3://{BUCKET}/llama/", f"s3://{BUCKET}/")}[request.param]
    environment = {"HF_ENDPOINT": made.url, "HF_HUB_CACHE": str(tmp_path / "hub"), "AWS_ENDPOINT_URL": made.url, "AWS_REGION": "us-east-1",
                   "AWS_ACCESS_KEY_ID": "test-key", "AWS_SECRET_ACCESS_KEY": "test-secret", "HOME": str(tmp_path)}
    with made as server, Cluster(host_pool="192MiB", origins=origins, environment=environment) as cluster:
        yield server, uri, cluster


def start(engine, model, daemon, home):
    environment = {**os.environ, "TENSORCAST_DAEMON": daemon, "XDG_CACHE_HOME": str(home)}
    return subprocess.Popen([sys.executable, "-B", str(pathlib.Path(__file__).with_name("uri_rank.py")), engine, model],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def finish(rank):
    output, _ = rank.communicate("on\n", timeout=START_SECONDS)
    assert rank.returncode == 0
    return json.loads(output)


def bytes_of_weights(server):
    return sum(count for path, count in server.sent.items() if path.endswith("model.safetensors"))


@pytest.mark.parametrize("engine, outside, served", [("vllm", "hf", "org/name"), ("sglang", "s3", f"s3://{BUCKET}/llama")], indirect=["outside"])
def test_engines_that_name_a_uri_at_once_make_one_import(engine, outside, served, tmp_path):
    pytest.importorskip("torch")
    server, uri, cluster = outside
    hold_until_both_ask(server)
    ranks = [start(engine, uri, cluster.address(node), tmp_path / node) for node in ("a", "b")]
    for rank in ranks:
        rank.stdin.write("on\n")
        rank.stdin.flush()
    for rank in ranks:
        report = finish(rank)
        started = report["started"]
        assert report["sums"] == SUMS and report["config"] == {"model_type": "llama"}
        assert sorted(os.listdir(started["model"])) == ["config.json", "tokenizer.json"]
        assert started["served_model_name"] == served and started["load_format"] == "tensorcast"
    assert WEIGHTS_BYTES <= bytes_of_weights(server) < 1.5 * WEIGHTS_BYTES
    key = uri.rstrip("/")
    for node in ("a", "b"):
        with tc.connect(cluster.address(node)) as store:
            assert [one.name for one in store.keys()] == [key] and len(store.replicas(key)) == 1
    # A later start reads nothing outside.
    server.sent.clear()
    later = f"tc://{key}" if engine == "vllm" else uri
    assert finish(start(engine, later, cluster.address("a"), tmp_path / "a"))["sums"] == SUMS
    assert not server.sent


@pytest.mark.parametrize("outside", ["hf"], indirect=True)
def test_a_uri_is_put_under_a_given_key_but_never_over_it(outside):
    server, uri, cluster = outside
    with tc.connect(cluster.address("a")) as store:
        options = LoaderOptions(key="given/new", daemon=store.daemon)
        options.fetch(uri)
        assert store.resolve("given/new").files_id and bytes_of_weights(server) >= WEIGHTS_BYTES
        store.put({"other": np.zeros(3)}, key="given/bound", progress=False)
        server.sent.clear()
        options = LoaderOptions(key="given/bound", daemon=store.daemon)
        with options.get(uri) as weights:
            assert list(weights) == ["other"]
        with pytest.raises(tc.NotFoundError, match="binds no files"):
            options.files(uri)
        assert store.resolve("given/bound").revision == 1 and not server.sent
