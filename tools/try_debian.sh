#!/usr/bin/env bash
# Tries this checkout on a Debian other than the machine's: makes a root folder with nothing but that Debian's base in it,
# from the mirror that the machine's apt uses, copies the checkout to its /src, and runs `make demo` and `make test` there.
#
#   tools/try_debian.sh SUITE [--root DIR] [COMMAND...]
#
#   tools/try_debian.sh trixie
#   tools/try_debian.sh trixie make test
#
# SUITE is bookworm or trixie; COMMAND runs in place of the two. DIR (default build/debian-SUITE) is kept, and a later run
# goes on with what is built there; remove it to begin from nothing. Needs root: chroot and namespaces. Folders of the
# machine are seen in there only where they are mounted, and only for as long as the script runs.
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
  # make is what the README's commands need before they can install anything.
  mmdebstrap --mode=root --variant=minbase --include=make,ca-certificates "$suite" "$root" \
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
  touch "$root/.complete"
fi

# What the machine needs to reach its mirrors, it needs in there.
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  if [[ -e $file ]]; then cp -L "$file" "$root$file"; fi
done

# The checkout as it stands, without what git ignores. Only what differs is copied, with the time of now, so that a second
# run builds just that: by the checkout's times, what was changed while the first run went on would be older than its objects.
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
