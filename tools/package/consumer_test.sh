#!/usr/bin/env bash
# An engine that links the installed client library: installs the build, builds consumer/ and the documentation's examples
# against it, and runs them.
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
# The documentation's examples, as they stand there: the README's program, and the lines of client.h's opening comment.
mkdir "$work/examples"
# shellcheck disable=SC2016  # backticks are the README's
sed -n '/^## From C++/,/^## /{/^```cpp$/,/^```$/{/^```/d;p}}' "$here/../../README.md" >"$work/examples/readme.cc"
{
  printf '%s\n' '#include "client/client.h"' '#include "base/status.h"' 'using namespace tensorcast; using namespace client;' \
    'absl::Status Example() {'
  sed -n '/^#pragma once/q;s|^//   ||p' "$work/installed/include/tensorcast/client/client.h"
  printf '%s\n' 'return absl::OkStatus();' '}'
} >"$work/examples/client_h.cc"
for example in readme client_h; do
  grep -q 'client->Get' "$work/examples/$example.cc" || { echo "FAILED: no example found for $example"; exit 1; }
done

"$cmake" -S "$here/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/installed" -DCMAKE_BUILD_TYPE=Debug \
  -DEXAMPLES="$work/examples"
"$cmake" --build "$work/consumer"
"$work/consumer/consumer"
tensorcast=$work/installed/bin/tensorcast
"$tensorcast" --help >"$work/help"

# The README's program against a daemon that works alone.
mkfifo "$work/ready"
"$tensorcast" daemon --set "daemon.state_dir=$work/state" --set daemon.host_pool=256MiB \
  --set "daemon.import_roots=[$work]" --ready-fd 3 3<>"$work/ready" >"$work/daemon-log" 2>&1 &
daemon=$!
trap 'kill "$daemon" 2>"$work/log" && wait "$daemon"; rm -rf "$work"' EXIT
read -r -t 60 _ <>"$work/ready" || { echo "FAILED: the daemon is not ready"; cat "$work/daemon-log"; exit 1; }
"$tensorcast" make-model "$work/model.safetensors" --size 8MiB
"$tensorcast" put "$work/model.safetensors" --key llama/prod --daemon "unix:$work/state/daemon.sock"
"$work/consumer/readme" "unix:$work/state/daemon.sock" llama/prod | tee "$work/tensors"
grep -q '^model.embed_tokens.weight: [1-9][0-9]* bytes at 0x' "$work/tensors" || { echo "FAILED: it lists no tensors"; exit 1; }
if "$work/consumer/readme" "unix:$work/state/daemon.sock" no/such/key 2>"$work/error"; then
  echo "FAILED: it succeeds without a model"
  exit 1
fi
grep -q NOT_FOUND "$work/error" || { echo "FAILED: its error is $(cat "$work/error")"; exit 1; }
