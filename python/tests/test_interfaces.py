"""The check of the recorded interfaces, on wheels made here."""

import json
import pathlib
import subprocess
import sys
import zipfile

import pytest

CHECK = pathlib.Path(__file__).resolve().parents[1] / "interfaces/check.py"
MODULE = "class A:\n    x: int = 1\n    def m(self, a, *, b=2) -> int: ...\ndef f(q): ...\nC = 'c'\n"
NAMES = {"A": {"x": "= 1", "m": "(self, a, *, b=2) -> int"}, "f": "(q)", "C": "= 'c'"}


@pytest.fixture
def check(tmp_path):
    def run(source, names=NAMES, *options):
        wheel = tmp_path / "pack-2.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("pack/part.py", source)
        recording = tmp_path / "pack.json"
        recording.write_text(json.dumps({"distribution": "pack", "version": "1.0", "recorded": "", "modules": {"pack.part": names}}))
        done = subprocess.run([sys.executable, str(CHECK), str(recording), str(wheel), *options], capture_output=True, text=True)
        return done.returncode, done.stderr, json.loads(recording.read_text())

    return run


def test_a_wheel_as_recorded_is_good(check):
    assert check(MODULE)[:2] == (0, "")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("b=2", "b=3", "A.m: recorded (self, a, *, b=2)"),
        ("def f(q)", "def g(q)", "pack.part.f does not exist"),
        ("'c'", "'d'", "C: recorded = 'c', the wheel has = 'd'"),
        ("class A:", "class B:", "pack.part.A does not exist"),
    ],
)
def test_what_differs_is_named(check, old, new, said):
    code, errors, _ = check(MODULE.replace(old, new))
    assert code == 1 and said in errors


def test_a_new_version_is_recorded(check):
    code, _, recording = check(MODULE.replace("b=2", "b=3"), NAMES, "--record")
    assert code == 0 and recording["version"] == "2.0" and recording["modules"]["pack.part"]["A"]["m"] == "(self, a, *, b=3) -> int"
