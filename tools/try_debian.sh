#!/usr/bin/env bash
# Tries this checkout on another Debian than the machine's. It makes a root folder with only the base of that Debian, from
# the mirror of the machine's apt, copies the checkout to /src in it, and runs `make demo` and `make test` there.
#
#   tools/try_debian.sh SUITE [--root DIR] [COMMAND...]
#
#   tools/try_debian.sh trixie
#   tools/try_debian.sh trixie make test
#
# SUITE is bookworm or trixie. COMMAND runs in place of the two. DIR (default build/debian-SUITE) is kept, and a later run
# continues with the build there; remove DIR to begin from nothing. Needs root, for chroot and namespaces. Only mounted
# folders of the machine are visible in DIR, and only while the script runs.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${1:?bookworm or trixie}
shift
root=$PWD/build/debian-$suite
if [[ ${1:-} == --root ]]; then
  root=$(realpath -m "$2")
  shift 2
fi
(($#)) || set -- sh -c 'make demo && make test'
die() { echo "try_debian: error: $*" >&2; exit 1; }
[[ $EUID -eq 0 ]] || die "chroot needs root"

if [[ ! -f $root/.complete ]]; then
  command -v mmdebstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get -y -qq install --no-install-recommends mmdebstrap >&2
  mirror=$(tools/debian_mirror.sh)
  rm -rf "$root"
  mkdir -p "$(dirname "$root")"
  # The README's commands need make before they can install anything.
  mmdebstrap --mode=root --variant=minbase --include=make,ca-certificates "$suite" "$root" \
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
  touch "$root/.complete"
fi

# The files that the machine needs to reach its mirrors are needed there too.
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  if [[ -e $file ]]; then cp -L "$file" "$root$file"; fi
done

# The checkout in its present state, without the files that git ignores. Only changed files are copied, with the present
# time, so that a second run builds only these. With the checkout's times, a file that was changed during the first run would
# be older than its objects.
mkdir -p "$root/src"
copied=$(mktemp)
trap 'rm -f "$copied"' EXIT
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  if [[ ! -e $file ]]; then continue; fi
  printf './%s\0' "$file" >>"$copied"
  if ! cmp -s "$file" "$root/src/$file"; then
    mkdir -p "$root/src/$(dirname "$file")"
    cp "$file" "$root/src/$file"
  fi
  chmod --reference="$file" "$root/src/$file"
done
(cd "$root/src" && find . -path ./build -prune -o -type f -print0 | sort -z | comm -z -23 - <(sort -z "$copied") | xargs -0 -r rm -f)
rm -f "$copied"
trap - EXIT

# shellcheck disable=SC2016  # expanded inside
exec unshare --mount --pid --fork --kill-child sh -c '
  root=$1
  shift
  mount --make-rprivate / && mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" &&
    mount --rbind /dev "$root/dev" && mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm" || exit 1
  unset TMPDIR CCACHE_DIR
  export HOME=/root
  exec chroot "$root" sh -c "cd /src && exec \"\$@\"" sh "$@"' sh "$root" "$@"
