#!/usr/bin/env bash
# Runs a test with a temporary folder and a working folder of its own. Fails if the test leaves processes behind, or files in
# these folders or in /dev/shm.
#
#   tests/in_own_folder.sh COMMAND [ARGUMENT...]
#
# The exit code is the command's, or 1 if it left something. CTest runs every test with it (tensorcast_add_test).
set -uo pipefail
folder=$(mktemp -d "${TMPDIR:-/tmp}/tc.XXXXXX") || exit 1
# On the file system of the build: some tests need one that is not a tmpfs.
working_folder=$(mktemp -d "$PWD/tc.XXXXXX") || exit 1
trap 'rm -rf "$folder" "$working_folder"' EXIT
chmod 711 "$folder" "$working_folder"  # some tests have parts that run as another user
shared_before=$(ls -A /dev/shm)

# What was started with this folder as its own, one "PID COMMAND" a line.
processes() {
  local environment pid
  env -u TMPDIR grep -lzsxF "TMPDIR=$folder" /proc/[0-9]*/environ | while read -r environment; do
    pid=${environment#/proc/}
    pid=${pid%/environ}
    echo "$pid $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline")"
  done
}

# Whether that process exists, and not only for its parent to learn how it ended.
runs() {
  local stat
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null && [[ ${stat##*) } != [ZX]* ]]
}

# Shared memory that is new and that no process has open or is named for. (Made by this test, or by one that ran beside it.)
shared_memory() {
  local name
  comm -13 <(echo "$shared_before") <(ls -A /dev/shm) | while read -r name; do
    [[ -z $(find /proc/[0-9]*/fd /proc/[0-9]*/map_files -lname "/dev/shm/$name*" -print -quit 2>/dev/null) ]] || continue
    [[ $name =~ _([0-9]+)$ && -e /proc/${BASH_REMATCH[1]} ]] && continue
    [[ -O /dev/shm/$name ]] && echo "/dev/shm/$name"
  done
}

(cd "$working_folder" && TMPDIR=$folder exec "$@")
code=$?

# The kernel kills what the test had started when the test ends; that takes an instant.
left_processes=$(processes)
left_memory=$(shared_memory)
for ((tries = 0; tries < 30; tries++)); do
  [[ -n $left_processes$left_memory ]] || break
  sleep 0.1
  left_processes=$(processes)
  left_memory=$(shared_memory)
done
left_files=$(find "$folder" "$working_folder" -mindepth 1 -maxdepth 2; echo "$left_memory")
if [[ -n $left_processes ]]; then
  echo "FAILED: $1 left these processes running:"$'\n'"$left_processes"
  while read -r pid _; do
    kill -KILL "$pid"
    # It runs on until the kernel has come round to it.
    for ((tries = 0; tries < 100; tries++)); do
      runs "$pid" || break
      sleep 0.1
    done
  done <<<"$left_processes"
fi
[[ -z $left_files ]] || echo "FAILED: $1 left these files:"$'\n'"$left_files"
[[ -z $left_processes$left_files || $code -ne 0 ]] || code=1
exit "$code"
