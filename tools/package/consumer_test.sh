#!/usr/bin/env bash
# An engine that links the installed client library: installs the build, builds consumer/ against it, and runs that.
#
#   tools/package/consumer_test.sh BUILD_DIR CMAKE
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:?the build folder}
cmake=${2:-cmake}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/first" >"$work/log" || { tail -20 "$work/log"; exit 1; }
# Somewhere else than it was installed to: nothing in it may name a place.
mv "$work/first" "$work/installed"
if grep -rlF "$work/first" "$work/installed" --include='*.cmake'; then
  echo "FAILED: these name the folder that was installed to"
  exit 1
fi
"$cmake" -S "$here/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/installed" -DCMAKE_BUILD_TYPE=Debug
"$cmake" --build "$work/consumer"
"$work/consumer/consumer"
"$work/installed/bin/tensorcast" --help >"$work/help"
