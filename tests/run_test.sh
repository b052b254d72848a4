#!/usr/bin/env bash
# run.sh and in_own_folder.sh, on tests that fail once, always, or leave something behind.
# shellcheck disable=SC2016  # the commands under test are expanded where they run
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

# Passes from the second time on that it is run with this name.
cat >"$work/unsteady" <<'END'
#!/bin/sh
echo "try of $1"
[ -e "$1.tried" ] || { touch "$1.tried"; exit 1; }
END
chmod +x "$work/unsteady"

# suite LABEL COMMAND...: one test of that label beside a good one.
suite() {
  local label=$1
  shift
  rm -rf "$work/build"
  mkdir "$work/build"
  {
    echo 'add_test(good true)'
    echo "add_test(it $*)"
    echo "set_tests_properties(it PROPERTIES LABELS $label)"
  } >"$work/build/CTestTestfile.cmake"
}
summaries() { grep -c 'tests passed' "$work/output"; }

suite unit "$work/unsteady" "$work/a"
"$here/run.sh" "$work/build" >"$work/output" 2>&1 && fail "a unit test has a second try"
[[ $(summaries) == 1 ]] || fail "a unit test was run again: $(cat "$work/output")"

for label in e2e robustness; do
  suite "$label" "$work/unsteady" "$work/$label"
  "$here/run.sh" "$work/build" >"$work/output" 2>&1 || fail "an unsteady $label test fails the suite: $(cat "$work/output")"
  [[ $(summaries) == 2 && $(grep -c "^try of" "$work/output") == 1 ]] || fail "the first try is not shown: $(cat "$work/output")"
  grep -q '1 tests failed out of 2' "$work/output" || fail "the first summary hides the failure: $(cat "$work/output")"
  grep -q 'unsteady.*: it$' "$work/output" || fail "the unsteady test is not named: $(cat "$work/output")"
  [[ $(tail -7 "$work/output") == *'100% tests passed'*'Total Test time'* ]] ||
    fail "CTest's summary is not the end: $(cat "$work/output")"
done

suite e2e false
"$here/run.sh" "$work/build" >"$work/output" 2>&1 && fail "a test that fails twice passes"
[[ $(summaries) == 2 ]] || fail "it had no second try: $(cat "$work/output")"

suite e2e "$work/unsteady" "$work/b"
echo 'add_test(broken false)' >>"$work/build/CTestTestfile.cmake"
"$here/run.sh" "$work/build" >"$work/output" 2>&1 && fail "a unit test's failure is lost beside another's second try"

# clean EXPECTED_CODE COMMAND...: of in_own_folder.sh; its output is in $work/output.
clean() {
  local expected=$1 code=0
  shift
  "$here/in_own_folder.sh" "$@" >"$work/output" 2>&1 || code=$?
  ((code == expected)) || fail "'$*' gives $code and not $expected: $(cat "$work/output")"
}
clean 0 true
clean 77 sh -c 'exit 77'
clean 3 sh -c 'touch "$TMPDIR/file"; exit 3'
clean 0 sh -c 'touch "$TMPDIR/file"; rm "$TMPDIR/file"'
clean 1 sh -c 'touch "$TMPDIR/left"'
grep -q '/left$' "$work/output" || fail "what was left is not named: $(cat "$work/output")"
clean 1 sh -c 'touch left-here'
grep -q '/left-here$' "$work/output" || fail "what was left in the working folder is not named: $(cat "$work/output")"
clean 1 sh -c 'sleep 1000 & echo $! >'"$work/pid"
grep -q 'sleep 1000' "$work/output" || fail "the process is not named: $(cat "$work/output")"
pid=$(cat "$work/pid")
stat=$(cat "/proc/$pid/stat" 2>/dev/null || true)
[[ -z $stat || ${stat##*) } == [ZX]* ]] || fail "the process that was left still runs"
shared=tensorcast-run-test-$$
clean 1 sh -c "echo x >/dev/shm/$shared"
rm "/dev/shm/$shared"
grep -q "$shared" "$work/output" || fail "shared memory that is left is not named: $(cat "$work/output")"
[[ -z $(sed -n 's|.*\(/tc\.[^/ ]*\).*|\1|p' "$work/output") ]] || fail "its folder is left"
