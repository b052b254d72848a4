#!/usr/bin/env bash
# Runs CTest, and once more, each alone, the tests of real processes (labels e2e and robustness) that failed: whatever else
# a small machine runs can starve them. No other test has a second try, and what needed one is in the first summary.
#
#   tests/run.sh BUILD_DIR [CTEST_OPTION...]
#
# Ends with CTest's own summary, and with exit code 0 only when every test passed in the end.
set -uo pipefail
build=${1:?the build folder}
shift
log=$build/Testing/Temporary/LastTestsFailed.log
rm -f "$log"

ctest --test-dir "$build" --output-on-failure "$@" && exit 0
code=$?
failed=$(cut -d: -f2- "$log" 2>/dev/null | sort)
of_processes=$(ctest --test-dir "$build" -N -L '^(e2e|robustness)$' | sed -n 's/^ *Test *#[0-9]*: //p' | sort)
[[ -n $failed && -z $(comm -23 <(echo "$failed") <(echo "$of_processes")) ]] || exit "$code"

echo
echo "tests: a second try of those that failed, all of real processes; one that passes now is unsteady, which is a defect: ${failed//$'\n'/ }"
ctest --test-dir "$build" --output-on-failure -R "^($(paste -sd'|' <<<"$failed"))\$"
