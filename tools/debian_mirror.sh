#!/usr/bin/env bash
# Prints the address of the Debian mirror of this machine's apt, so that no file has to name a mirror.
set -euo pipefail

# shellcheck disable=SC2016 # these are apt's own variables
uri=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 2>/dev/null |
  awk '($2 == "bookworm" || $2 == "trixie") && $3 == "main" {print $1; exit}')
[[ -n $uri ]] || { echo "debian_mirror: error: apt has no source with 'main' of Debian 12 or 13; add one" >&2; exit 1; }
echo "$uri"
