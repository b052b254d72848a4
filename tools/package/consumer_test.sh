#!/usr/bin/env bash
# Tests an engine that links the installed client library: installs the build, builds consumer/ and the examples of the
# documentation against it, and runs them.
#
#   tools/package/consumer_test.sh BUILD_DIR CMAKE
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:?the build folder}
cmake=${2:-cmake}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/first" >"$work/log" || { tail -20 "$work/log"; exit 1; }
# The installation is moved: no file in it may name its folder.
mv "$work/first" "$work/installed"
if grep -rlF "$work/first" "$work/installed" --include='*.cmake'; then
  echo "FAILED: these files name the folder of the installation"
  exit 1
fi
# Only the client library was installed: its headers below one folder, and one archive.
headers=$(cd "$work/installed/include" && find . -type f | sort)
if grep -v '^\./tensorcast/.*\.h$' <<<"$headers" || grep -E 'proto|rpc|test' <<<"$headers"; then
  echo "FAILED: these headers must not be installed"
  exit 1
fi
archives=$(cd "$work/installed" && find . -name '*.a' -not -path '*/deps/*')
[[ $archives == ./lib*/tensorcast/libtensorcast_client.a ]] || { echo "FAILED: these archives are installed, not only the client library: $archives"; exit 1; }

# The documentation's examples, as they stand there: the program of docs/cpp.md, and the lines of the headers' opening comments.
mkdir "$work/examples"
# shellcheck disable=SC2016  # backticks are Markdown's
sed -n '/^## From C++/,/^## /{/^```cpp$/,/^```$/{/^```/d;p}}' "$here/../../docs/cpp.md" >"$work/examples/readme.cc"
# header_example NAME SIGNATURE: the example of tensorcast/NAME.h as the body of a function.
header_example() {
  {
    printf '%s\n' '#include <iostream>' '#include <tensorcast/client.h>' "#include <tensorcast/$1.h>" \
      'using namespace tensorcast;' 'using namespace client;' 'template <class... T> void Use(const T&...) {}' "$2 {"
    sed -n '/^#pragma once/q;s|^//   ||p' "$work/installed/include/tensorcast/$1.h"
    printf '%s\n' 'return absl::OkStatus();' '}'
  } >"$work/examples/$1_h.cc"
}
header_example changes 'absl::Status Example(Client* client, const RequestContext& context, const std::string& version_n, std::span<const std::span<std::byte>> my_tensors)'
header_example client 'absl::Status Example()'
header_example replica 'absl::Status Example(const std::unique_ptr<Replica>& replica)'
header_example telemetry 'absl::Status Example()'
# found EXAMPLE TEXT: checks that the example has the text, because an empty example would also compile.
found() { grep -qF -- "$2" "$work/examples/$1.cc" || { echo "FAILED: the example $1 does not have $2"; exit 1; }; }
found readme ')->Get('
found changes_h ')->WriteTo('
found client_h ')->Get('
found replica_h 'replica->Find('
found telemetry_h 'StartTelemetry('
# Each header alone.
while read -r header; do
  echo "#include <${header#./}>" >"$work/examples/alone_$(tr -c 'a-z\n' _ <<<"$header").cc"
done <<<"$headers"

"$cmake" -S "$here/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/installed" -DCMAKE_BUILD_TYPE=Debug \
  -DEXAMPLES="$work/examples"
"$cmake" --build "$work/consumer"
"$work/consumer/consumer"
"$work/consumer/with_telemetry"
readelf --dynamic "$work/consumer/consumer" >"$work/needed"
if grep 'NEEDED.*opentelemetry' "$work/needed"; then
  echo "FAILED: a program without telemetry loads the SDK"
  exit 1
fi
tensorcast=$work/installed/bin/tensorcast
"$tensorcast" --help >"$work/help"

# The program of docs/cpp.md against a daemon that works alone.
mkfifo "$work/ready"
"$tensorcast" daemon --set "daemon.state_dir=$work/state" --set daemon.host_pool=256MiB \
  --set "daemon.import_roots=[$work]" --ready-fd 3 3<>"$work/ready" >"$work/daemon-log" 2>&1 &
daemon=$!
trap 'kill "$daemon" 2>"$work/log" && wait "$daemon"; rm -rf "$work"' EXIT
read -r -t 60 _ <>"$work/ready" || { echo "FAILED: the daemon is not ready"; cat "$work/daemon-log"; exit 1; }
"$tensorcast" make-model "$work/model.safetensors" --size 8MiB
"$tensorcast" put "$work/model.safetensors" --key llama/prod --daemon "unix:$work/state/daemon.sock"
"$work/consumer/readme" "unix:$work/state/daemon.sock" llama/prod | tee "$work/tensors"
grep -q '^model.embed_tokens.weight: [1-9][0-9]* bytes at 0x' "$work/tensors" || { echo "FAILED: the README's program lists no tensors"; exit 1; }
if "$work/consumer/readme" "unix:$work/state/daemon.sock" no/such/key 2>"$work/error"; then
  echo "FAILED: the README's program succeeds without a model"
  exit 1
fi
grep -q NOT_FOUND "$work/error" || { echo "FAILED: the error of the README's program is $(cat "$work/error")"; exit 1; }
