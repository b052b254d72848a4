#!/usr/bin/env bash
# The README's "By hand", line by line as a new user types it, in a folder of the test's own.
#
#   tests/e2e/readme_test.sh TENSORCAST_BINARY
# shellcheck disable=SC2016  # backticks and variables are the README's
set -euo pipefail
binary=${1:?the tensorcast binary}
readme=$(dirname "$0")/../../README.md
work=$(mktemp -d)
servers=()
fail() {
  echo "FAILED: $*"
  tail -n 30 "$work"/*.log
  exit 1
}
end() {
  ((${#servers[@]} == 0)) || kill "${servers[@]}" 2>/dev/null || true
  wait
  rm -rf "$work"
}
trap end EXIT

# The block's lines, with continued ones joined and the README's folder replaced by one that is not there yet.
block=$(sed -n '/^## By hand/,/^## /{/^```/,/^```/{/^```/d;p}}' "$readme" |
  sed -e ':join' -e '/\\$/{N;s/\\\n *//;b join' -e '}' -e "s|/tmp/tc\b|$work/tc|g")
grep -q '^[$]bin put ' <<<"$block" || fail "no commands found in the README"

commands=0
while read -r line; do
  [[ -n $line ]] || continue
  commands=$((commands + 1))
  log=$work/$commands.log
  echo "\$ $line"
  case $line in
    bin=*) bin=$binary ;;
    *'&')
      eval "exec ${line%&}" >"$log" 2>&1 &
      servers+=($!)
      ;;
    '$bin top '*)  # until Ctrl-C
      eval "exec ${line%%#*}" >"$log" 2>&1 &
      top=$!
      for ((tries = 0; tries < 600; tries++)); do
        grep -q 'replicas' "$log" && break
        kill -0 "$top" 2>/dev/null || fail "it ended"
        sleep 0.1
      done
      kill -INT "$top"
      code=0
      wait "$top" || code=$?
      ((code == 130)) || fail "Ctrl-C gives $code"
      cat "$log"
      ;;
    *)
      eval "$line" >"$log" 2>&1 || fail "exit code $?"
      cat "$log"
      ;;
  esac
done <<<"$block"

# What it shows has happened: the copy is the model again, and the servers stop in order.
tc=$work/tc
"$bin" put "$tc/copy.safetensors" --daemon "unix:$tc/a/daemon.sock" | grep -q 'already stored' || fail "the copy is another artifact"
for ((i = ${#servers[@]} - 1; i >= 0; i--)); do
  kill -TERM "${servers[i]}"
  wait "${servers[i]}" || fail "server $i exits with $?"
done
servers=()
