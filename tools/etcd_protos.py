#!/usr/bin/env python3
"""Makes etcd's published API (the .proto files in golang-etcd-server-dev) compilable without Go's annotations.

etcd_protos.py FROM TO: finds rpc.proto, kv.proto and auth.proto anywhere below FROM, because their place depends on the package's
version, and writes them to TO/etcd/. Messages and services stay unchanged. The imports, options and field options of gogoproto, of
the HTTP gateway and of version numbers are removed: they change nothing on the wire.
"""

import pathlib
import re
import sys

WANTED = {"etcdserverpb/rpc.proto", "mvccpb/kv.proto", "authpb/auth.proto"}
IMPORT = re.compile(r'^import "(?:.*/)?(\w+)\.proto";\n', re.MULTILINE)
FIELD_OPTION = re.compile(r"\s*\[\s*\(.*?\]", re.DOTALL)
COMMENT = re.compile(r"//.*")


def without_options(text: str) -> str:
    """Removes each `option (name) = value;`. A value may be a block in braces."""
    kept, at = [], 0
    for found in re.finditer(r"^[ \t]*option \(", text, re.MULTILINE):
        if found.start() < at:
            continue
        kept.append(text[at:found.start()])
        depth = 0
        for at in range(found.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if text[at] == ";" and depth == 0:
                break
        at += 1
    return "".join(kept) + text[at:]


def adapt(text: str) -> str:
    text = without_options(COMMENT.sub("", text))
    text = IMPORT.sub(lambda found: f'import "etcd/{found[1]}.proto";\n' if found[1] in ("kv", "auth") else "", text)
    return FIELD_OPTION.sub("", text)


def main() -> int:
    source, target = (pathlib.Path(argument) for argument in sys.argv[1:3])
    found = {name: path for path in sorted(source.rglob("*.proto")) if (name := "/".join(path.parts[-2:])) in WANTED}
    if missing := WANTED - set(found):
        print(f"{source} has no {', '.join(sorted(missing))}: is this golang-etcd-server-dev?", file=sys.stderr)
        return 1
    (target / "etcd").mkdir(parents=True, exist_ok=True)
    for path in found.values():
        (target / "etcd" / path.name).write_text(adapt(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
