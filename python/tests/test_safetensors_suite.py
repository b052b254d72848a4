"""The safetensors project's own tests, from its source package, against the drop-in.

Each test that passes with the original in this environment must pass with the drop-in: once with files alone, and once with
each saved file also put into the store.

Left out are the tests of frameworks that are not installed here (flax, mlx, paddle, tensorflow), and test_threadable, which
times the original's own serializer. The drop-in skips the tests that the original skips here (no GPU, an older torch). A test
that fails with the original is a failure of this test to run it.
"""

import os
import pathlib
import re
import subprocess
import sys
import tarfile

import pytest

torch = pytest.importorskip("torch")

VERSION = "0.8.0"

try:
    torch.ones(1).numpy()
    DESELECTED = ()
except RuntimeError:  # Debian's torch was built for numpy 1, and numpy 2 is installed here
    DESELECTED = ("test_pt_comparison.py::SliceTestCase::test_deserialization_slice",)
FILES = ("simple", "handle", "pt_comparison", "pt_model", "pread_backend", "multithreaded")

# pip builds the metadata of a source package before it downloads it, and that of this one needs Rust's registry.
BUILD_BACKEND = """
import os
def get_requires_for_build_wheel(settings=None): return []
def prepare_metadata_for_build_wheel(folder, settings=None):
    name = "safetensors-VERSION.dist-info"
    os.makedirs(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: safetensors\\nVersion: VERSION\\n")
    return name
"""

# Each saved file is also put into the store, and a file that is opened then must be attached.
STORING = """
import os
import tensorcast
from tensorcast.safetensors import _stored, numpy, torch

store = tensorcast.connect()
attached = []


def and_put(save):
    def run(tensors, filename, metadata=None):
        save(tensors, filename, metadata)
        store.put(os.path.abspath(filename), progress=False)
    return run


def counted(attach):
    def run(filename):
        weights = attach(filename)
        attached.append(weights is not None)
        return weights
    return run


numpy.save_file, torch.save_file = and_put(numpy.save_file), and_put(torch.save_file)
for module in (tensorcast.safetensors, numpy, torch):
    module.attach = counted(module.attach)


def pytest_sessionfinish():
    print(f"\\nattached {sum(attached)}")
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    (folder / "maturin.py").write_text(BUILD_BACKEND.replace("VERSION", VERSION))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary=safetensors"]
    subprocess.run([*command, f"safetensors=={VERSION}", "-d", str(folder)], check=True, env={**os.environ, "PYTHONPATH": str(folder)})
    with tarfile.open(folder / f"safetensors-{VERSION}.tar.gz") as archive:
        archive.extractall(folder)
    return folder / f"safetensors-{VERSION}/bindings/python/tests"


def run(sources, folder, drop_in, conftest=""):
    """Runs the tests. Returns the outcome of each test, and the output."""
    for name in FILES:
        text = (sources / f"test_{name}.py").read_text()
        if drop_in:
            text = re.sub(r"^( *)from safetensors", r"\1from tensorcast.safetensors", text, flags=re.MULTILINE)
        (folder / f"test_{name}.py").write_text(text)
    (folder / "conftest.py").write_text(conftest)
    (folder / "tests/data").mkdir(parents=True)  # the tests write there, relative to the folder of their project
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    command += [word for test in DESELECTED for word in ("--deselect", test)]
    printed = subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout
    outcomes = re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", printed, flags=re.MULTILINE)
    return {test: outcome for outcome, test in outcomes}, printed


@pytest.fixture(scope="module")
def original(sources, tmp_path_factory):
    outcomes, printed = run(sources, tmp_path_factory.mktemp("original"), drop_in=False)
    assert set(outcomes.values()) == {"PASSED"} and len(outcomes) + len(DESELECTED) >= 65, printed
    return outcomes


def test_files_are_loaded_like_by_the_original(sources, original, store, tmp_path):
    outcomes, printed = run(sources, tmp_path, drop_in=True)
    assert outcomes == original, printed


def test_files_in_the_store_are_loaded_like_by_the_original(sources, original, store, tmp_path):
    outcomes, printed = run(sources, tmp_path, drop_in=True, conftest=STORING)
    assert outcomes == original, printed
    assert int(re.search(r"^attached (\d+)", printed, flags=re.MULTILINE).group(1)) >= 30
