#!/bin/bash
# Has an independent decoder decode what the encoder made. Usage: interop_test.sh difference_interop_tool PYTHON
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$1" "$folder"
"$2" -B "$(dirname "$0")/decode_difference.py" "$folder"
