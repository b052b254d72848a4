#!/usr/bin/env bash
# Tests the packages on an empty system: a root folder with the C and C++ runtimes, /proc, /sys, /dev and the package.
#
#   tools/package/bare_root_test.sh BUILD_DIR
#
# Exit code 77: this machine cannot run the test, and the output says why.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:?the build folder}
say() { echo "bare root: $*"; }
fail() { say "FAILED: $*"; exit 1; }
skip() { say "skipped: $*"; exit 77; }

[[ $EUID -eq 0 ]] || skip "chroot needs root"
unshare --mount --pid --fork true 2>/dev/null || skip "this machine allows no namespaces (unshare)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$here/make_package.sh" --build "$build" --out "$work/packages"

# make_root FOLDER: makes a minimal system with glibc and libstdc++.
make_root() {
  local root=$1 library
  mkdir -p "$root"/{proc,sys,dev,tmp,lib64,lib/x86_64-linux-gnu,opt,etc,srv,run}
  cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
  for library in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libresolv.so.2 libgcc_s.so.1 libstdc++.so.6; do
    cp -L "/lib/x86_64-linux-gnu/$library" "$root/lib/x86_64-linux-gnu/"
  done
  echo 'tensorcast:x:998:' >"$root/etc/group"
  echo '127.0.0.1 localhost' >"$root/etc/hosts"
}

# in_root FOLDER COMMAND...: runs a process in that root, with a /proc, /sys, /dev and /tmp of its own.
in_root() {
  # shellcheck disable=SC2016  # expanded inside
  unshare --mount --pid --fork sh -c '
    root=$1
    shift
    unset TMPDIR  # a folder outside of the root
    mount --make-rprivate / && mount -t proc proc "$root/proc" && mount --bind /dev "$root/dev" && mount --bind /sys "$root/sys" &&
      mount -t tmpfs tmpfs "$root/tmp" || exit 77
    exec chroot "$root" "$@"' sh "$@"
}

root=$work/root
make_root "$root"
in_root "$root" /opt/nothing 2>/dev/null && fail "a missing program ran"

# The archive, unpacked in any folder: the demo over tcp and the local lane.
tar -C "$root/opt" -xzf "$work"/packages/tensorcast-*-linux-x86_64.tar.gz
tensorcast=$(cd "$root" && echo opt/tensorcast-*/bin/tensorcast)
status=0
in_root "$root" "/$tensorcast" --help >"$work/help" || status=$?
((status == 77)) && skip "this machine allows no mounts"
((status == 0)) || fail "--help exits with $status: $(cat "$work/help")"
in_root "$root" "/$tensorcast" demo --size 64MiB --json >"$work/demo" 2>"$work/log" ||
  fail "the demo: $(tail -20 "$work/log") $(cat "$work/demo")"
grep -q tcp "$work/demo" || fail "no transfer over tcp: $(cat "$work/demo")"
say "the archive runs the demo"
in_root "$root" "/$tensorcast" bench p2p --lane ucx --smoke --json >"$work/bench" 2>"$work/log" ||
  fail "a transfer over ucx: $(tail -20 "$work/log") $(cat "$work/bench")"

# The check of the GPUs, with the packaged libraries and the host's Python: its tests start, and find no GPU.
archive=$(cd "$root" && echo "$PWD"/opt/tensorcast-*)
status=0
CUDA_VISIBLE_DEVICES='' "$archive/bin/tensorcast-gpu-check" --out "$work/gpu-check.md" >"$work/log" 2>&1 || status=$?
if ((status != 2)) || ! grep -q "there is no GPU to test" "$work/log"; then
  fail "gpu-check exits with $status: $(cat "$work/log")"
fi
[[ ! -e $work/gpu-check.md ]] || fail "gpu-check writes a file without a GPU"

# The licences of TensorCast and of the packaged libraries.
for licence in LICENSE licences/libucx0 licences/libcli11-dev; do
  [[ -s $archive/$licence ]] || fail "$licence is not in the archive"
done

# The packaged UCX runs, with its packaged modules, as far as they can be loaded.
for library in libucp.so.0 libucs.so.0 libgrpc.so.29 ucx/libuct_cma.so.0; do
  [[ -e $root/opt/$(cd "$root/opt" && echo tensorcast-*)/lib/$library ]] || fail "$library is not in the archive"
done

# The Debian package: its files are in place and its configuration is valid. (Its scripts need a whole system.)
deb_root=$work/deb-root
make_root "$deb_root"
dpkg-deb -x "$work"/packages/tensorcast_*_amd64.deb "$deb_root"
for config in daemon global-store; do
  in_root "$deb_root" /usr/bin/tensorcast config check --config "/etc/tensorcast/$config.yaml" >"$work/check" 2>&1 ||
    fail "config check of $config.yaml: $(cat "$work/check")"
done
# The link in /usr/bin leads to the folder that has the other program, too.
in_root "$deb_root" /usr/bin/tensorcast make-model /tmp/model.safetensors --size 1MiB >"$work/made" 2>&1 ||
  fail "make-model of the Debian package: $(cat "$work/made")"
sed 's/host_pool:/host_pol:/' "$deb_root/etc/tensorcast/daemon.yaml" >"$deb_root/etc/wrong.yaml"
if in_root "$deb_root" /usr/bin/tensorcast config check --config /etc/wrong.yaml >"$work/check" 2>&1; then
  fail "config check accepts a wrong key"
fi
grep -q "Apache License, Version 2.0" "$deb_root/usr/share/doc/tensorcast/copyright" || fail "the package has no copyright file"
for file in bash-completion/completions/tensorcast zsh/vendor-completions/_tensorcast \
  fish/vendor_completions.d/tensorcast.fish man/man1/tensorcast.1.gz; do
  [[ -s $deb_root/usr/share/$file ]] || fail "no $file in the package"
done
bash -n "$deb_root/usr/share/bash-completion/completions/tensorcast" || fail "the completion is not a bash script"
zcat "$deb_root/usr/share/man/man1/tensorcast.1.gz" | grep -q '^\.TH TENSORCAST 1' || fail "the manual page has no title"
for script in postinst prerm postrm; do
  dpkg-deb --info "$work"/packages/tensorcast_*_amd64.deb "$script" | sh -n || fail "$script is not a shell script"
done
for unit in tensorcast-global-store tensorcast-daemon; do
  [[ -f $deb_root/usr/lib/systemd/system/$unit.service ]] || fail "no $unit.service in the package"
done
if command -v systemd-analyze >/dev/null; then
  cp -rn /usr/lib/systemd/system/. "$deb_root/usr/lib/systemd/system/"  # the targets in the order of our units
  systemd-analyze verify --root="$deb_root" tensorcast-global-store.service tensorcast-daemon.service ||
    fail "systemd-analyze verify rejects the units"
fi
dpkg-deb -c "$work"/packages/tensorcast-dev_*_amd64.deb | grep tensorcastConfig.cmake >/dev/null || fail "no CMake package in tensorcast-dev"
say "the Debian packages are good"
