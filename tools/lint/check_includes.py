#!/usr/bin/env python3
"""Checks that includes go one way only, and that heavy third-party headers stay in their folders.

The rules are the tables below; CONTRIBUTING.md has the layers. Prints file:line for every finding and exits with 1.
"""

import argparse
import collections
import dataclasses
import pathlib
import re
import sys

import sources

# Each layer and the layers that its files may include. A longer prefix wins. A layer may always include itself.
LAYERS = {
    "base": set(),
    "security": {"base"},
    "otel/api": {"base"},
    "otel/sdk": {"base", "otel/api", "proto"},
    "core": {"base", "otel/api"},
    "objects": {"base", "otel/api", "core"},
    "transport": {"base", "security", "otel/api", "core"},
    "collective": {"base", "otel/api", "core"},
    "rpc": {"base", "security", "otel/api", "core", "proto"},
    "global_store": {"base", "security", "otel/api", "core", "proto", "rpc"},
    "daemon": {"base", "security", "otel/api", "core", "objects", "transport", "collective", "proto", "rpc"},
    "client": {"base", "security", "otel/api", "core", "objects", "proto", "rpc"},
    "client/telemetry": {"base", "otel/sdk", "proto", "client"},
    "cli": {"base", "security", "otel/api", "otel/sdk", "core", "objects", "transport", "collective", "proto", "rpc", "global_store",
            "daemon", "client"},
    "python": {"base", "otel/api", "core", "proto", "rpc", "client"},
    "tools": {"base", "core", "client"},
    # The product is all of the above: it does not know its workshop.
    "tools/workshop": {"base", "security", "otel/api", "otel/sdk", "core", "objects", "transport", "collective", "proto", "rpc",
                       "global_store", "daemon", "client", "cli"},
}
# The folders of core/ that these layers may include. They coordinate and call, so they do not link the engine; layers that open
# no device do not include core/device. The client opens the files of an import. (core/memory is for its fake daemon.)
CORE_FOLDERS = {
    "collective": {"core/device"},
    "rpc": {"core/artifact", "core/replica"},
    "global_store": {"core/artifact", "core/replica"},
    "client": {"core/artifact", "core/device", "core/difference", "core/disk", "core/handles", "core/memory", "core/replica", "core/safetensors",
               "core/tensor"},
    "python": {"core/device", "core/replica", "core/tensor"},
}
# These layers may include all others, and no other layer may include them.
FREE_LAYERS = {"tests"}
OUR_TOP_FOLDERS = {"base", "security", "otel", "core", "objects", "transport", "collective", "rpc", "global_store", "daemon", "client",
                   "cli", "python", "tools", "tests", "proto"}

# The subfolders of these are layers too, in the order in which their CMakeLists.txt adds them.
ORDERED_FOLDERS = ("core", "objects", "daemon", "cli", "global_store", "tools/workshop")

# The client's public headers are included by their installed path: "tensorcast/client.h". One list has all installed headers, and
# of our headers an installed one includes only those on the list.
PUBLIC_FOLDER = "client/include"
PUBLIC_PREFIX = "tensorcast/"
INSTALLED = pathlib.PurePosixPath("cmake/TensorCastInstall.cmake")
INSTALLED_LIST = re.compile(r"set\(TENSORCAST_PUBLIC_HEADERS([^)]*)\)")

# In a folder no two files need each other: a header with its source is one idea, and ideas have an order. The exceptions:
FOLDERS_WITH_CYCLES = {
    "cli/config",  # the configuration, its schema and its setter
    "global_store/service",  # the service and its handlers
    "otel/sdk",  # the bridge and its parts
    "transport/ucx",  # callbacks from UCX: the worker and its endpoints, the source and its connections
}

GENERATED = re.compile(r"^proto/\w+(\.grpc)?\.pb\.h$")
MESSAGES = re.compile(r"(\.pb\.h$|^grpc(pp)?/|^google/protobuf/)")
NO_MESSAGES_IN = {"base", "security", "otel/api", "core", "objects", "transport", "collective"}


@dataclasses.dataclass(frozen=True)
class ThirdParty:
    name: str
    pattern: re.Pattern
    folders: tuple[str, ...]  # only these may include it
    private: bool  # it may not be in a header that another folder includes


THIRD_PARTIES = (
    ThirdParty("UCX", re.compile(r"^(ucp|ucs|uct|ucm)/"), ("transport/ucx",), True),
    ThirdParty("NCCL", re.compile(r"^nccl\w*\.h$"), ("collective/nccl",), True),
    ThirdParty("CUDA", re.compile(r"^(cuda|nvml)\w*\.h$"), ("core/device",), True),
    ThirdParty("SQLite", re.compile(r"^sqlite3\w*\.h$"), ("global_store/metadata",), True),
    ThirdParty("the OpenTelemetry SDK", re.compile(r"^opentelemetry/"), ("otel/sdk",), True),
    ThirdParty("curl", re.compile(r"^curl/"), ("objects/http",), True),
    ThirdParty("libzstd", re.compile(r"^zstd"), ("core/difference",), True),
    ThirdParty("expat", re.compile(r"^expat"), ("objects/http",), True),
    ThirdParty("OpenSSL", re.compile(r"^openssl/"),
               ("security", "security/testing", "core/artifact", "objects/s3", "objects/hf", "objects/testing",
                "rpc/grant_token", "global_store/service", "transport/tcp", "cli/dashboard", "tests/fuzz"),
               True),
    ThirdParty("nanobind", re.compile(r"^nanobind/"), ("python/src",), True),
    ThirdParty("yaml-cpp", re.compile(r"^yaml-cpp/"), ("cli/config",), True),
    ThirdParty("CLI11", re.compile(r"^CLI/"), ("cli/commands",), True),
)

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
ADD_SUBDIRECTORY = re.compile(r"^\s*add_subdirectory\(\s*([\w/]+)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Include:
    file: pathlib.PurePosixPath
    line: int
    target: str
    quoted: bool


def read_includes(root: pathlib.Path, file: pathlib.PurePosixPath) -> list[Include]:
    found = []
    text = (root / file).read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        if match := INCLUDE.match(line):
            target = match[1] or match[2]
            if target.startswith(PUBLIC_PREFIX):
                target = f"{PUBLIC_FOLDER}/{target}"
            found.append(Include(file, number, target, match[1] is not None))
    return found


def layer_of(path: str) -> str | None:
    """The layer of a path; None for a path outside of the tree."""
    parts = path.split("/")
    for length in (2, 1):
        prefix = "/".join(parts[:length])
        if len(parts) > length and (prefix in LAYERS or prefix in FREE_LAYERS or prefix == "proto"):
            return prefix
    return None


def is_test(file: pathlib.PurePosixPath) -> bool:
    """Tests beside the code may include all layers except tests/."""
    return file.stem.endswith("_test") or file.stem.startswith("test_") or "_test_" in file.stem


def subfolder(top: str, path: str) -> str | None:
    """The folder right below `top` that has the file; None for a file elsewhere, or of `top` itself."""
    below = path.removeprefix(f"{top}/").split("/")
    return below[0] if path.startswith(f"{top}/") and len(below) > 1 else None


def order_inside(root: pathlib.Path, folder: str) -> list[str]:
    cmake = root / folder / "CMakeLists.txt"
    return ADD_SUBDIRECTORY.findall(cmake.read_text(encoding="utf-8")) if cmake.is_file() else []


def installed_headers(root: pathlib.Path) -> set[str]:
    cmake = root / INSTALLED
    found = INSTALLED_LIST.search(cmake.read_text(encoding="utf-8")) if cmake.is_file() else None
    return set(found[1].split()) if found else set()


class Checker:
    def __init__(self, root: pathlib.Path):
        self.root = root
        self.order = {folder: order_inside(root, folder) for folder in ORDERED_FOLDERS}
        self.installed = installed_headers(root)
        self.problems: list[str] = []

    def run(self) -> list[str]:
        includes = [i for file in sources.tracked_sources(self.root) for i in read_includes(self.root, file)]
        for include in includes:
            if layer_of(str(include.file)) in FREE_LAYERS:
                continue
            self._check_target_exists(include)
            self._check_layers(include)
            self._check_order(include)
            self._check_messages(include)
            self._check_third_party(include)
            self._check_installed(include)
        self._check_private_headers(includes)
        self._check_cycles(includes)
        return self.problems

    def _report(self, include: Include, what: str) -> None:
        self.problems.append(f"{include.file}:{include.line}: includes {include.target}: {what}")

    def _check_target_exists(self, include: Include) -> None:
        ours = include.target.split("/")[0] in OUR_TOP_FOLDERS and "/" in include.target
        generated = GENERATED.match(include.target)
        if include.quoted and ours and not generated and not (self.root / include.target).is_file():
            self._report(include, "the file does not exist")

    def _check_layers(self, include: Include) -> None:
        own, target = layer_of(str(include.file)), layer_of(include.target)
        if own is None or target is None or own == target:
            return
        if target in FREE_LAYERS:
            self._report(include, f"nothing outside {target}/ may use it")
        elif not is_test(include.file) and target not in LAYERS[own]:
            allowed = ", ".join(sorted(LAYERS[own])) or "nothing of ours"
            self._report(include, f"{own}/ may include {allowed}, not {target}/")
        elif not is_test(include.file) and target == "core" and own in CORE_FOLDERS:
            folder = "/".join(include.target.split("/")[:2])
            if folder not in CORE_FOLDERS[own]:
                self._report(include, f"of core/, {own}/ may include {', '.join(sorted(CORE_FOLDERS[own]))} only")

    def _check_order(self, include: Include) -> None:
        if is_test(include.file):
            return
        for top, order in self.order.items():
            own, target = subfolder(top, str(include.file)), subfolder(top, include.target)
            if own is None or target is None or own == target:
                continue
            if own not in order or target not in order:
                self._report(include, f"{top}/CMakeLists.txt does not add both {own} and {target}")
            elif order.index(target) > order.index(own):
                self._report(include, f"{top}/{target} stands above {top}/{own} (the order in {top}/CMakeLists.txt)")

    def _check_messages(self, include: Include) -> None:
        if MESSAGES.search(include.target) and layer_of(str(include.file)) in NO_MESSAGES_IN:
            self._report(include, f"{layer_of(str(include.file))}/ knows neither gRPC nor protobuf; convert at the edge")

    def _check_third_party(self, include: Include) -> None:
        for library in THIRD_PARTIES:
            if library.pattern.match(include.target) and str(include.file.parent) not in library.folders:
                self._report(include, f"{library.name} belongs to {', '.join(library.folders)} only")

    def _check_installed(self, include: Include) -> None:
        ours = layer_of(include.target) is not None
        if str(include.file) in self.installed and ours and include.target not in self.installed:
            self._report(include, f"an installed header may include only those that {INSTALLED} lists")

    def _check_cycles(self, includes: list[Include]) -> None:
        needs: dict[pathlib.PurePosixPath, dict[pathlib.PurePosixPath, Include]] = collections.defaultdict(dict)
        for include in includes:
            own, target = include.file.with_suffix(""), pathlib.PurePosixPath(include.target).with_suffix("")
            ours = layer_of(str(own)) not in FREE_LAYERS | {None} and str(own.parent) not in FOLDERS_WITH_CYCLES
            if ours and own.parent == target.parent and own != target and not is_test(include.file):
                needs[own].setdefault(target, include)
        done: set[pathlib.PurePosixPath] = set()

        def visit(idea: pathlib.PurePosixPath, path: list[pathlib.PurePosixPath]) -> None:
            for target, include in needs.get(idea, {}).items():
                if target in path:
                    cycle = [step.name for step in path[path.index(target):]] + [target.name]
                    self._report(include, f"files that need each other: {' -> '.join(cycle)}")
                elif target not in done:
                    visit(target, [*path, target])
            done.add(idea)

        for idea in sorted(needs):
            if idea not in done:
                visit(idea, [idea])

    def _check_private_headers(self, includes: list[Include]) -> None:
        used_from = collections.defaultdict(set)  # header -> folders that include it
        for include in includes:
            used_from[include.target].add(str(include.file.parent))
        for include in includes:
            if include.file.suffix != ".h":
                continue
            others = used_from[str(include.file)] - {str(include.file.parent)}
            for library in THIRD_PARTIES:
                if library.private and others and library.pattern.match(include.target):
                    self._report(include, f"{library.name} in a header that {', '.join(sorted(others))} includes; "
                                          "keep it in .cc files or private headers")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    problems = Checker(parser.parse_args().root).run()
    print("\n".join(problems) if problems else "includes: good")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
