#!/usr/bin/env bash
# Runs Google Benchmark binaries one after another; fails when one fails or a benchmark in it reports an error.
#
#   run_benchmarks.sh [--benchmark_...=... ...] binary...
set -euo pipefail

flags=()
while [[ ${1:-} == --* ]]; do
  flags+=("$1")
  shift
done
[[ $# -gt 0 ]] || { echo "run_benchmarks.sh: name at least one benchmark binary" >&2; exit 2; }

failed=0
for binary in "$@"; do
  if ! output=$("$binary" "${flags[@]}" 2>&1) || grep -q 'ERROR OCCURRED' <<<"$output"; then
    echo "run_benchmarks.sh: $binary failed" >&2
    failed=1
  fi
  echo "$output"
done
exit $failed
