#!/usr/bin/env bash
# Tests the wheels like a user: auditwheel confirms the platform in their names. pip installs each wheel into an empty
# environment, and `tensorcast demo` runs there.
#
#   tools/package/wheel_test.sh BUILD_DIR
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:?the build folder}
say() { echo "wheel test: $*"; }
fail() { say "FAILED: $*"; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$here/make_wheel.sh" --build "$build" --out "$work/wheels"

# interpreter_of TAG: prints the interpreters that accept wheels of that tag, one a line.
interpreter_of() {
  local python
  for python in /usr/bin/python3 "$HOME"/.pyenv/versions/3.*/bin/python3; do
    [[ -x $python ]] || continue
    case $1 in
      *abi3*) "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' || continue ;;
      *) "$python" -c "import sys; sys.exit('cp%d%d' % sys.version_info[:2] not in '$1')" || continue ;;
    esac
    echo "$python"
  done
}

tools=$(sed -n 's/^TENSORCAST_PYTHON_ENVIRONMENT:[A-Z]*=//p' "$build/CMakeCache.txt")
# The libraries that UCX's InfiniBand modules need are the machine's (make_wheel.sh). All others are in the wheel, or in every
# system of the platform.
audit() {
  local platform=${1##*-}
  PATH=$tools/bin:$PATH "$tools-tests/bin/python" -m auditwheel repair -z 0 --only-plat --plat "${platform%.whl}" \
    --exclude libibverbs.so.1 --exclude libmlx5.so.1 --exclude librdmacm.so.1 --wheel-dir "$work/audited" "$1"
}

for wheel in "$work"/wheels/*.whl; do
  audit "$wheel" >"$work/audit" 2>&1 || fail "auditwheel: $(tail -20 "$work/audit")"
  found=$(interpreter_of "$(basename "$wheel")")
  [[ -n $found ]] || fail "no interpreter for $(basename "$wheel")"
  while read -r python; do
    environment=$work/environment
    "$python" -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
    # From this folder no file of the tree or of the build can be found.
    cd "$work"
    "$environment/bin/tensorcast" demo --size 16MiB --json >"$work/demo" 2>"$work/log" ||
      fail "the demo of $(basename "$wheel") with $python: $(tail -20 "$work/log") $(cat "$work/demo")"
    "$environment/bin/python" -W error -c 'import importlib.metadata, pathlib, sys, tensorcast
wheel = importlib.metadata.distribution("tensorcast-store")
assert wheel.version == tensorcast.__version__ and wheel.metadata["License-Expression"] == "Apache-2.0", wheel.metadata
assert (pathlib.Path(tensorcast.__file__).parent / "licences" / "libucx0").stat().st_size > 0
print("loads with", sys.version.split()[0], tensorcast.__file__)' || fail "the metadata of $(basename "$wheel")"
    cd "$here"
    rm -rf "$environment"
  done <<<"$found"
done
say "good"
