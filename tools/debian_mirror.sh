#!/usr/bin/env bash
# Prints the address of the Debian mirror that this machine's apt uses, so that no mirror's name is written anywhere.
set -euo pipefail

# shellcheck disable=SC2016 # apt's own variables
uri=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 2>/dev/null |
  awk '($2 == "bookworm" || $2 == "trixie") && $3 == "main" {print $1; exit}')
[[ -n $uri ]] || { echo "error: apt has no source of Debian 12's or 13's 'main'" >&2; exit 1; }
echo "$uri"
