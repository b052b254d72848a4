"""The warning at import where another distribution has files of the package tensorcast."""

import os
import subprocess
import sys

import pytest

import tensorcast as tc
from tensorcast import other_distributions


def install(folder, distribution, file):
    """What pip leaves of a distribution of version 0.1.1 with one file."""
    metadata = folder / f"{distribution.replace('-', '_')}-0.1.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1.1\n")
    (metadata / "RECORD").write_text(f"{file},,\n{metadata.name}/METADATA,,\n{metadata.name}/RECORD,,\n")


def import_with(folder):
    """What `import tensorcast` prints in a new process that finds the distributions of the folder."""
    paths = [os.path.dirname(os.path.dirname(tc.__file__)), str(folder)]
    done = subprocess.run([sys.executable, "-c", "import tensorcast, tensorcast.store"], check=True, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
    return done.stderr


def test_import_warns_once_of_a_distribution_with_our_files(tmp_path):
    install(tmp_path, "tensorcast", "tensorcast/__init__.py")
    said = import_with(tmp_path)
    assert said.count("RuntimeWarning") == 1
    assert f"the distribution tensorcast 0.1.1 in {tmp_path} has files of the same package" in said
    assert "pip uninstall tensorcast tensorcast-store" in said


@pytest.mark.parametrize("distribution, file", [
    ("tensorcast", "other/__init__.py"),
    ("tensorcast-store", "tensorcast/__init__.py"),
    ("tensorcast-extras", "tensorcast_extras/__init__.py"),
], ids=["same name, other files", "ours", "another name"])
def test_import_is_silent_without_a_conflict(tmp_path, distribution, file):
    install(tmp_path, distribution, file)
    assert import_with(tmp_path) == ""


def test_egg_info_of_a_distribution_counts_too(tmp_path):
    metadata = tmp_path / "tensorcast-0.1.1.egg-info"
    metadata.mkdir()
    (metadata / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: tensorcast\nVersion: 0.1.1\n")
    (metadata / "SOURCES.txt").write_text("tensorcast/__init__.py\n")
    (tmp_path / "tensorcast").mkdir()
    (tmp_path / "tensorcast" / "__init__.py").touch()
    with pytest.warns(RuntimeWarning, match="tensorcast 0.1.1"):
        other_distributions.warn([str(tmp_path)])


def test_normal_import_reads_no_metadata(tmp_path):
    code = f"""
import sys, warnings
before = set(sys.modules)
exec(open({other_distributions.__file__!r}).read())
warn([{str(tmp_path)!r}, "/nowhere", {sys.executable!r}])
assert "importlib.metadata" not in sys.modules, "importlib.metadata takes milliseconds"
"""
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
