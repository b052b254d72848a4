#!/usr/bin/env python3
"""Compares the recorded interfaces of packages that TensorCast plugs into with a wheel of such a package.

    python3 -B python/interfaces/check.py vllm.json vllm-*.whl            # exits with 0 if all is as recorded, else prints the differences
    python3 -B python/interfaces/check.py vllm.json vllm-*.whl --record   # records the wheel's interface, for a new version

A recording names what our plug-ins call, inherit or are called with. The wheel is read as text and never imported, so the
check needs neither its dependencies nor a GPU.
"""

import argparse
import ast
import datetime
import json
import pathlib
import sys
import zipfile


class NotThere(Exception):
    """A recorded name that the wheel does not have."""


def describe(node):
    """Describes a function by its signature, and an assignment by its value."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"({ast.unparse(node.args)}){returns}"
    return f"= {ast.unparse(node.value)}" if node.value else ""


def names_of(node):
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    return [node.name] if hasattr(node, "name") else []


def read(body, recorded, where):
    """Reads the recorded names from `body`, into the same shape as `recorded`."""
    there = {name: node for node in body for name in names_of(node)}
    # A class may be replaced by one that is made of it, under the same name.
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    found = {}
    for name, value in recorded.items():
        if name not in there:
            raise NotThere(f"{where}.{name} does not exist")
        if isinstance(value, dict):
            if name not in classes:
                raise NotThere(f"{where}.{name} is not a class")
            found[name] = read(classes[name].body, value, f"{where}.{name}")
        elif isinstance(there[name], ast.ClassDef):
            raise NotThere(f"{where}.{name} is a class")
        else:
            found[name] = describe(there[name])
    return found


def differences(recorded, found, where):
    for name, value in recorded.items():
        if isinstance(value, dict):
            yield from differences(value, found[name], f"{where}.{name}")
        elif value != found[name]:
            yield f"{where}.{name}: recorded {value}, the wheel has {found[name]}"


def source_of(wheel, module):
    path = module.replace(".", "/")
    for candidate in (f"{path}.pyi", f"{path}/__init__.pyi", f"{path}.py", f"{path}/__init__.py"):
        if candidate in wheel.namelist():
            return wheel.read(candidate).decode()
    raise NotThere(f"{module} does not exist")


def version_of(path):
    return path.name.split("-")[1]


def check(recording, wheel_path):
    """Returns the modules of the wheel, and a line for each difference."""
    found = {}
    problems = []
    with zipfile.ZipFile(wheel_path) as wheel:
        for module, names in recording["modules"].items():
            try:
                found[module] = read(ast.parse(source_of(wheel, module)).body, names, module)
            except NotThere as error:
                problems.append(str(error))
            else:
                problems += differences(names, found[module], module)
    return found, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=pathlib.Path)
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--record", action="store_true", help="write the wheel's version and signatures")
    arguments = parser.parse_args()

    path = arguments.recording if arguments.recording.exists() else pathlib.Path(__file__).with_name(arguments.recording.name)
    recording = json.loads(path.read_text())
    found, problems = check(recording, arguments.wheel)
    if arguments.record and len(found) == len(recording["modules"]):
        recording |= {"version": version_of(arguments.wheel), "recorded": datetime.date.today().isoformat(), "modules": found}
        path.write_text(json.dumps(recording, indent=2) + "\n")
        return 0
    for problem in problems:
        print(f"{recording['distribution']} {version_of(arguments.wheel)}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
