"""Doubles of packages that are not installed here, made from the recordings in python/interfaces.

A module of the double has every recorded name. Its classes and functions have the recorded signatures and raise
NotImplementedError. A test passes working replacements itself; each must have the recorded signature.
"""

import inspect
import json
import pathlib
import sys
import types

INTERFACES = pathlib.Path(__file__).resolve().parents[1] / "interfaces"


def _source(name, value, indent=""):
    if isinstance(value, dict):
        body = "".join(_source(*member, indent + "    ") for member in value.items())
        return f"{indent}class {name}:\n{body or indent + '    pass'}\n"
    if value.startswith("("):
        decorator = f"{indent}@classmethod\n" if value.startswith("(cls") else ""
        return f"{decorator}{indent}def {name}{value}:\n{indent}    raise NotImplementedError({name!r})\n"
    return f"{indent}{name} = {value.removeprefix('= ')!r}\n"


def _shape(function):
    return [(p.name, p.kind, p.default is p.empty) for p in inspect.signature(function).parameters.values()]


def install(monkeypatch, name, given):
    """Puts the double of a recording into sys.modules. Returns the modules by name.

    given: replacements, by "module:name" or "module:Class.name".
    """
    recording = json.loads((INTERFACES / f"{name}.json").read_text())
    modules = {}
    for module_name, names in recording["modules"].items():
        parts = module_name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in modules:
                modules[path] = types.ModuleType(path)
                modules[path].__path__ = []
                monkeypatch.setitem(sys.modules, path, modules[path])
        source = "from __future__ import annotations\n" + "".join(_source(*member) for member in names.items())
        exec(compile(source, module_name, "exec"), vars(modules[module_name]))
    for where, made in given.items():
        module_name, _, path = where.partition(":")
        owner = modules[module_name]
        *classes, attribute = path.split(".")
        for part in classes:
            owner = getattr(owner, part)
        recorded = getattr(owner, attribute)
        if inspect.isfunction(made):
            assert _shape(made) == _shape(recorded), f"{where} was recorded otherwise"
        setattr(owner, attribute, made)
    return modules
