#!/usr/bin/env bash
# Runs every libFuzzer target of a build folder for some seconds each, several at a time.
#
#   tests/fuzz/run.sh BUILD_FOLDER SECONDS [JOBS]
#
# Inputs that reach new code are kept in BUILD_FOLDER/corpus/TARGET for the next run; an input that breaks a target is
# BUILD_FOLDER/crash-* (run the target's binary with it as its only argument to see it again).
set -euo pipefail

build=$1 seconds=$2 jobs=${3:-1}

run_target() {
  local target=$1 name corpus
  name=$(basename "$target")
  corpus=$build/corpus/$name
  mkdir -p "$corpus" "$build/logs"
  "$target" --write-seeds "$corpus" || return 1
  if "$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$build/" "$corpus" >"$build/logs/$name.log" 2>&1; then
    echo "$name: good, $(awk '/number_of_executed_units/ {print $2}' "$build/logs/$name.log") inputs"
  else
    echo "$name: FAILED"
    tail -40 "$build/logs/$name.log"
    return 1
  fi
}
export -f run_target
export build seconds

targets=("$build"/bin/*_fuzz)
[[ -x ${targets[0]} ]] || { echo "no fuzz targets in $build/bin: make fuzz builds them" >&2; exit 1; }
# xargs ends with 123 when any target failed, after all of them ran.
printf '%s\0' "${targets[@]}" | xargs -0 -P "$jobs" -I{} bash -c 'run_target {}'
