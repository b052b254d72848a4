#!/usr/bin/env bash
# The documentation's shell examples, line by line as a new user types them, each in a folder of its own: the README's
# ten lines, and "By hand" of docs/getting-started.md.
#
#   tests/e2e/readme_test.sh TENSORCAST_BINARY
set -euo pipefail
binary=$(realpath "${1:?the tensorcast binary}")
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
servers=()
fail() {
  echo "FAILED: $*"
  tail -n 30 "$work"/*/*.log
  exit 1
}
end() {
  ((${#servers[@]} == 0)) || kill "${servers[@]}" 2>/dev/null || true
  wait
  rm -rf "$work"
}
trap end EXIT
unset TENSORCAST_DAEMON
# The examples call the program by its name, as it is after an installation.
mkdir "$work/bin"
ln -s "$binary" "$work/bin/tensorcast"
export PATH=$work/bin:$PATH

# block_of PAGE HEADING: the lines of the code block below the heading, with continued ones joined and /tmp/tc replaced by
# a folder that is not there yet.
block_of() {
  sed -n "/^## $2\$/,/^## /{/^\`\`\`/,/^\`\`\`/{/^\`\`\`/d;p}}" "$root/$1" |
    sed -e ':join' -e '/\\$/{N;s/\\\n *//;b join' -e '}' -e "s|/tmp/tc\b|$folder/tc|g"
}

# run_line LINE: a server, a program that runs until Ctrl-C, or a command that ends by itself.
run_line() {
  local log=$1 line=$2 code=0 tries top
  case $line in
    *'&')
      eval "exec ${line%&}" >"$log" 2>&1 &
      servers+=($!)
      ;;
    'tensorcast top '*)  # until Ctrl-C
      eval "exec ${line%%#*}" >"$log" 2>&1 &
      top=$!
      for ((tries = 0; tries < 600; tries++)); do
        grep -q 'replicas' "$log" && break
        kill -0 "$top" 2>/dev/null || fail "it ended"
        sleep 0.1
      done
      kill -INT "$top"
      wait "$top" || code=$?
      ((code == 130)) || fail "Ctrl-C gives $code"
      cat "$log"
      ;;
    *)
      eval "$line" >"$log" 2>&1 || fail "exit code $?"
      cat "$log"
      ;;
  esac
}

# run_block PAGE HEADING: each line of the block; then the copy of the model is the model, and the servers stop in order.
run_block() {
  local block line commands=0 i
  folder=$work/$((++blocks))
  mkdir "$folder"
  block=$(block_of "$1" "$2")
  grep -q '^tensorcast put ' <<<"$block" || fail "no commands found below \"$2\" in $1"
  while read -r line; do
    [[ -n $line ]] || continue
    commands=$((commands + 1))
    echo "\$ $line"
    run_line "$folder/$commands.log" "$line"
  done <<<"$block"
  tensorcast put "$folder/tc/copy.safetensors" --daemon "unix:$folder/tc/a/daemon.sock" | grep -q 'already stored' ||
    fail "the copy is another artifact"
  for ((i = ${#servers[@]} - 1; i >= 0; i--)); do
    kill -TERM "${servers[i]}"
    wait "${servers[i]}" || fail "server $i exits with $?"
  done
  servers=()
  unset TENSORCAST_DAEMON
}

blocks=0
run_block README.md 'Ten lines of shell'
run_block docs/getting-started.md 'By hand'
