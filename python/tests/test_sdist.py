"""The error of pip when no wheel fits."""

import pathlib
import subprocess
import sys

import pytest

import tensorcast as tc

SDIST = pathlib.Path(__file__).resolve().parents[1] / "sdist"
sys.path.append(str(SDIST))
import make  # noqa: E402
import refusal  # noqa: E402

CPYTHON = {"version": (3, 12), "implementation": "cpython", "abi": "", "system": "Linux", "machine": "x86_64", "libc": ("glibc", "2.36")}


def pip_says(python, folder, tmp_path):
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-index", "--find-links", str(folder),
               "--target", str(tmp_path / "target"), "tensorcast-store"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    return " ".join((done.stdout + done.stderr).split())


def test_pip_of_python_3_10_says_why_there_is_no_wheel(tmp_path):
    found = sorted(pathlib.Path.home().glob(".pyenv/versions/3.10.*/bin/python3"))
    if not found:
        pytest.skip("there is no Python 3.10 here (pyenv)")
    make.make(tc.__version__, "2.36", tmp_path)
    said = pip_says(str(found[0]), tmp_path, tmp_path)
    assert "and this is cpython 3.10 on Linux x86_64; use Python 3.11 or later" in said


def test_pip_that_takes_no_wheel_says_what_to_do(tmp_path):
    make.make(tc.__version__, "2.36", tmp_path)
    assert "install tensorcast-store: its wheels are for CPython 3.11 and later" in pip_says(sys.executable, tmp_path, tmp_path)


@pytest.mark.parametrize("differs, said", [
    ({"version": (3, 10)}, "3.11 or later"),
    ({"version": (3, 9)}, "3.11 or later"),
    ({"implementation": "pypy"}, "CPython"),
    ({"abi": "t"}, "with the GIL"),
    ({"system": "Darwin"}, "Linux x86-64"),
    ({"machine": "aarch64"}, "Linux x86-64"),
    ({"libc": ("glibc", "2.31")}, "Debian 12"),
    ({"libc": ("", "")}, "Debian 12"),
    ({}, "newer pip"),
], ids=str)
def test_refusal_names_what_to_change(differs, said):
    cause, remedy = refusal.why(**{**CPYTHON, **differs})
    assert said in remedy and all(str(value) in cause for value in differs.values() if isinstance(value, str) and value != "t")
