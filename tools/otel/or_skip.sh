#!/bin/sh
# or_skip.sh PROGRAM ARGUMENT...: runs it, or the system's of that name where it is missing. Exits with 77, which CTest takes for
# skipped, where there is none.
program=$1
shift
name=$(basename "$program")
[ -x "$program" ] || program=$(command -v "$name") || {
  echo "skipped: $name is missing; tools/setup.sh --tests fetches it"
  exit 77
}
exec "$program" "$@"
