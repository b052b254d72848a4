#!/usr/bin/env python3
"""Tests and measures TensorCast's GPU code on the GPUs of this machine, and writes one file about both: `make gpu-check`.

Runs the contract tests of devices and of NCCL, the demo, the Python package's tests on GPUs, and `tensorcast bench gpu`. The file
(Markdown) has a description of the machine, the results of the tests, and each figure beside its reference and its limit. Exits with 1 if a
test failed or a figure could not be measured, and with 2 if there is no GPU. A figure that misses its limit is not a failure: the file and
the output name it.

    tools/workshop/bench/gpu_check.py [--build build/release] [--out gpu-check.md] [--bytes 4GiB] [--nccl PATH] [--python PYTHON]

`--python`: an interpreter with pytest, this package, and a PyTorch that sees the GPUs.

In the relocatable archive it is bin/tensorcast-gpu-check, beside the binary, with the tests in libexec/gpu-check.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys

TIMEOUT_SECONDS = 1800  # of each test and of the benchmark

# The summary that a GoogleTest program prints.
PASSED = re.compile(r"^\[  PASSED  \] (\d+) tests?", re.M)
SKIPPED = re.compile(r"^\[  SKIPPED \] (\d+) tests?", re.M)


@dataclasses.dataclass
class Asked:
    """A row of `bench gpu`, and its limit: the min ratio to the reference's rate, or the max value in the row's unit."""

    metric: str  # how the name of the row begins
    min_ratio: float | None = None
    max_value: float | None = None


ASKED = [
    Asked("host replica to GPU", min_ratio=0.95),
    Asked("GPU to GPU, staged", min_ratio=0.90),
    Asked("GPU to GPU, two daemons", min_ratio=0.80),
    Asked("one GPU to", min_ratio=0.90),
    Asked("chunk digests on the GPU", min_ratio=0.70),
    Asked("GPU rebuild beside a copy", min_ratio=0.50),
    Asked("GPU rebuild beside the host's", min_ratio=2.0),
    Asked("p50", max_value=2.0),
]


@dataclasses.dataclass
class Outcome:
    code: int
    out: str
    error: str = ""


def run(command: list[str], environment: dict[str, str]) -> Outcome:
    """Never raises: a missing or hanging program is also an outcome."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Outcome(127, "", str(error))
    return Outcome(done.returncode, done.stdout, done.stderr)


class NoGpuError(Exception):
    """The tests of the devices' contract found no device."""


class Check:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.environment = dict(os.environ)
        if options.libraries:
            known = self.environment.get("LD_LIBRARY_PATH")
            self.environment["LD_LIBRARY_PATH"] = options.libraries + (":" + known if known else "")
        self.lines: list[str] = []
        self.problems: list[str] = []
        self.slow: list[str] = []

    def say(self, text: str = "") -> None:
        self.lines.append(text)

    def machine(self) -> None:
        """Describes the machine."""
        commands = [
            ("GPUs", "nvidia-smi --query-gpu=index,name,memory.total,driver_version,pci.bus_id,compute_cap --format=csv"),
            ("topology", "nvidia-smi topo -m"),
            ("CPUs", "lscpu"),
            ("memory", "free -h"),
            ("network adapters", "ls -l /sys/class/infiniband"),
        ]
        self.say("## The machine\n")
        self.say(f"- {platform.node()}, {platform.system()} {platform.release()}, {platform.machine()}")
        self.say(f"- {run([self.options.binary, '--version'], self.environment).out.strip()}")
        for what, command in commands:
            if shutil.which(shlex.split(command)[0]) is None:
                self.say(f"- {what}: `{shlex.split(command)[0]}` is not installed")
                continue
            outcome = run(shlex.split(command), self.environment)
            # lscpu's lists of vulnerabilities and features are too long.
            text = "\n".join(line for line in outcome.out.splitlines() if not line.startswith(("Vulnerability", "Flags")))
            text = text.strip() or outcome.error.strip()
            self.say(f"\n{what} (`{command}`):\n\n```\n{text}\n```")

    def test(self, program: str, arguments: list[str]) -> None:
        outcome = run([program, *arguments], self.environment)
        name = pathlib.Path(program).name
        passed, skipped = PASSED.search(outcome.out), SKIPPED.search(outcome.out)
        said = f"{passed.group(1) if passed else 'none'} passed"
        said += f", {skipped.group(1)} skipped" if skipped else ""
        reasons = sorted({line.strip() for line in re.findall(r"Skipped\n(.*)", outcome.out)})
        good = outcome.code == 0 and passed is not None and int(passed.group(1)) > 0
        if outcome.code == 0 and skipped is not None and not good and program == self.options.tests[0][0]:
            raise NoGpuError("; ".join(reasons))
        self.say(f"- `{name}`: {'good' if good else '**failed**'}, {said}")
        for reason in reasons:
            self.say(f"  - skipped: {reason}")
        if not good:
            self.problems.append(f"{name} failed ({said}); its last lines are in the file")
            self.say(f"\n```\n{(outcome.out + outcome.error)[-4000:].strip()}\n```")

    def demo(self) -> None:
        outcome = run([self.options.binary, "demo", *(["--size", "64MiB"] if self.options.smoke else [])], self.environment)
        good = outcome.code == 0 and "real GPU" in outcome.out + outcome.error
        self.say(f"- `tensorcast demo`: {'good, on real GPUs' if good else '**failed**'}")
        if not good:
            self.problems.append("the demo failed or used no GPU; its last lines are in the file")
            self.say(f"\n```\n{(outcome.out + outcome.error)[-4000:].strip()}\n```")

    def python(self) -> None:
        tests = pathlib.Path(__file__).resolve().parents[3] / "python" / "tests" / "on_real_gpus.py"
        if not self.options.python or not tests.is_file():
            self.say("- the Python package: not tested; it takes `--python` and the source tree")
            return
        command = [self.options.python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", str(tests)]
        outcome = run(command, {**self.environment, "TENSORCAST_BINARY": self.options.binary})
        passed = re.search(r"^(\d+) passed", outcome.out, re.M)
        good = outcome.code == 0 and passed is not None
        self.say(f"- the Python package (`on_real_gpus.py`): {'good, ' + passed.group(0) if good and passed else '**failed**'}")
        if not good:
            self.problems.append("the tests of the Python package failed; their last lines are in the file")
            self.say(f"\n```\n{(outcome.out + outcome.error)[-4000:].strip()}\n```")

    def tests(self) -> None:
        self.say("\n## Tests\n")
        for program, arguments in self.options.tests:
            self.test(program, arguments)
        self.demo()
        self.python()

    def judge(self, row: dict, asked: Asked) -> str:
        if asked.max_value is not None:
            kept = row["value"] <= asked.max_value
            verdict = f"at most {asked.max_value:g} {row['unit']}"
        else:
            kept = row["pair_ratio"] >= asked.min_ratio
            verdict = f"at least {asked.min_ratio:g}"
        if self.options.smoke:
            return f"{verdict} | –"
        if not kept:
            slow = f"{row['pair_ratio']:.2f} of {row['reference_name']}" if asked.min_ratio else f"{row['value']:.2f} {row['unit']}"
            self.slow.append(f"{row['metric']}: {slow}, asked: {verdict}")
        return f"{verdict} | {'yes' if kept else '**no**'}"

    def figures(self) -> None:
        command = ["bench", "gpu", "--json"]
        command += ["--smoke"] if self.options.smoke else []
        command += ["--bytes", self.options.bytes] if self.options.bytes else []
        command += ["--nccl", self.options.nccl] if self.options.nccl else []
        outcome = run([self.options.binary, *command], self.environment)
        self.say(f"\n## Figures\n\n`tensorcast {shlex.join(command)}`; medians of pairs, measured in turns.\n")
        if outcome.code != 0:
            self.problems.append("the benchmark failed; its last lines are in the file")
            self.say(f"```\n{outcome.error[-4000:].strip()}\n```")
            return
        rows = json.loads(outcome.out)
        self.say("| what | lane | measured | reference | its rate | ratio (95 %) | asked | kept |\n|---|---|---|---|---|---|---|---|")
        for asked in ASKED:
            found = [row for row in rows if row["metric"].startswith(asked.metric)]
            if not found:
                self.say(f"| {asked.metric} | | not measured here | | | | | |")
            for row in found:
                reference, rate, ratio = "–", "–", "–"
                if row["reference_name"]:
                    reference, rate = row["reference_name"], f"{row['reference_value']:.2f} {row['unit']}"
                    low, high = row["pair_ratio_low"], row["pair_ratio_high"]
                    ratio = f"{row['pair_ratio']:.2f}" + (f" ({low:.2f}-{high:.2f})" if low is not None else "")
                value = f"{row['value']:.2f} {row['unit']}"
                self.say(f"| {row['metric']} | {row['lane']} | {value} | {reference} | {rate} | {ratio} | {self.judge(row, asked)} |")
        for said in (line for line in outcome.error.splitlines() if "not measured" in line):
            self.say(f"\n{said}")
        self.say("\n### Slower than asked\n")
        if self.options.smoke:
            self.say("Not judged: the figures of a short run (`--smoke`) mean nothing.")
        elif not self.slow:
            self.say("Nothing.")
        for line in self.slow:
            self.say(f"- {line}")
        self.say(f"\n### All rows\n\n```json\n{json.dumps(rows, indent=1)}\n```")
        for line in self.slow:
            print(f"slower than asked: {line}")

    def write(self) -> int:
        now = datetime.datetime.now(datetime.timezone.utc)
        head = [f"# TensorCast on GPUs, {now:%Y-%m-%d %H:%M} UTC\n"]
        head += [f"- **problem**: {problem}" for problem in self.problems] or ["Every test passed, every figure was measured."]
        pathlib.Path(self.options.out).write_text("\n".join([*head, "", *self.lines]) + "\n", encoding="utf-8")
        for problem in self.problems:
            print(f"problem: {problem}")
        print(f"wrote {self.options.out}")
        return 1 if self.problems else 0


def find_parts(options: argparse.Namespace) -> None:
    """Finds the programs: in the build folder, or, in an archive, beside this file."""
    here = pathlib.Path(__file__).resolve().parent
    installed = here.parent / "libexec" / "gpu-check"
    options.libraries = ""
    if options.build is None and installed.is_dir():
        options.binary = str(here / "tensorcast")
        options.libraries = str(here.parent / "lib")
        folder = installed
    else:
        folder = pathlib.Path(options.build or "build/release") / "bin"
        options.binary = options.binary or str(folder / "tensorcast")
    if not options.tests:
        options.tests = [f"{folder}/device_contract_test --gtest_filter=Cuda/*", f"{folder}/communicator_contract_gpu_test"]
    options.tests = [(words[0], words[1:]) for words in map(shlex.split, options.tests)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", help="the build folder")
    parser.add_argument("--binary", help="the tensorcast program, in place of the build's")
    parser.add_argument("--test", action="append", dest="tests", metavar="COMMAND", help="a test to run in place of the two; repeatable")
    parser.add_argument("--out", default="gpu-check.md", help="the file to write")
    parser.add_argument("--bytes", help="the size of the model, such as 1GiB; default: the benchmark's own size")
    parser.add_argument("--nccl", help="the path of NCCL's library; default: the system's library")
    parser.add_argument("--python", help="an interpreter, for the tests of the Python package; default: none")
    parser.add_argument("--smoke", action="store_true", help="a short run with tiny sizes, which proves only that it works")
    options = parser.parse_args()
    find_parts(options)
    check = Check(options)
    check.machine()
    try:
        check.tests()
    except NoGpuError as error:
        print(f"gpu-check: there is no GPU to test: {error}", file=sys.stderr)
        return 2
    check.figures()
    return check.write()


if __name__ == "__main__":
    sys.exit(main())
