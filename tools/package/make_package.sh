#!/usr/bin/env bash
# Makes the packages of a build folder:
#
#   tools/package/make_package.sh --build DIR --out DIR [--archive-only]
#
#   tensorcast-VERSION-linux-x86_64.tar.gz   the programs, the shared libraries that they need, and the check of a
#                                            machine's GPUs; for any folder
#   tensorcast_VERSION_amd64.deb             bin/ and lib/ below /usr/lib/tensorcast, with systemd units and a user
#   tensorcast-dev_VERSION_amd64.deb         the client library: headers, one archive, a CMake package
#
# A package takes only the C and C++ runtimes from the system, which every system with glibc >= 2.36 has. The drivers of RDMA
# devices (rdma-core) must match the machine's kernel modules. So UCX's InfiniBand modules are in the package and rdma-core is
# not: without rdma-core UCX does not use these modules.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

limit_mib=60
archive_only=false
build='' out=''
say() { echo "package: $*" >&2; }
die() { say "error: $*"; exit 1; }

while (($#)); do
  case $1 in
    --build) build=${2:?}; shift 2 ;;
    --out) out=${2:?}; shift 2 ;;
    --archive-only) archive_only=true; shift ;;
    *) die "unknown argument $1; see the head of $0" ;;
  esac
done
[[ -n $build && -n $out ]] || die "--build and --out are required; see the head of $0"
programs=(tensorcast tensorcast-bench)
for program in "${programs[@]}"; do
  [[ -x $build/bin/$program ]] || die "$build/bin/$program is missing; build it first"
done
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:[A-Z]*=//p' "$build/CMakeCache.txt")
[[ $version =~ ^[0-9.]+$ ]] || die "no project version in $build/CMakeCache.txt"
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d "$out/.package-XXXXXX")
trap 'rm -rf "$work"' EXIT

# shellcheck source=tools/package/libraries.sh
source "$here/libraries.sh"

# stage PREFIX: fills bin/, lib/ and licences/, which all packages share.
stage() {
  local program
  mkdir -p "$1/bin" "$1/lib"
  for program in "${programs[@]}"; do
    install -m 0755 "$build/bin/$program" "$1/bin/$program"
    strip "$1/bin/$program"
    copy_libraries "$build/bin/$program" "$1/lib"
  done
  copy_ucx_modules "$build/bin/tensorcast" "$1/lib"
  copy_licences "$1/lib" "$1/licences"
}

check_size() {
  local bytes
  bytes=$(stat -c %s "$1")
  say "$(basename "$1"): $((bytes / 1048576)) MiB"
  ((bytes <= limit_mib * 1048576)) || die "$1 has $bytes bytes, more than $limit_mib MiB"
}

# stage_gpu_check PREFIX: adds bin/tensorcast-gpu-check and its tests.
stage_gpu_check() {
  local test
  mkdir -p "$1/libexec/gpu-check"
  install -m 0755 "$here/../workshop/bench/gpu_check.py" "$1/bin/tensorcast-gpu-check"
  for test in device_contract_test communicator_contract_gpu_test; do
    install -m 0755 "$build/bin/$test" "$1/libexec/gpu-check/$test"
    strip "$1/libexec/gpu-check/$test"
    copy_libraries "$build/bin/$test" "$1/lib"
  done
}

make_archive() {
  local name=tensorcast-$version-linux-x86_64
  cp -r "$work/runtime" "$work/$name"
  stage_gpu_check "$work/$name"
  install -m 0644 "$here/../../LICENSE" "$work/$name/"
  mkdir -p "$work/$name/etc" "$work/$name/systemd"
  cp "$here"/debian/*.yaml "$work/$name/etc/"
  cp "$here"/debian/*.service "$work/$name/systemd/"
  tar -C "$work" --owner=0 --group=0 --numeric-owner --sort=name -czf "$out/$name.tar.gz" "$name"
  rm -rf "${work:?}/$name"
  check_size "$out/$name.tar.gz"
}

# control ROOT PACKAGE: makes the control file of a package from its template.
control() {
  mkdir -p "$1/DEBIAN"
  sed -e "s/@VERSION@/$version/" -e "s/@SIZE@/$(du -sk "$1" | cut -f1)/" "$here/debian/$2.control" >"$1/DEBIAN/control"
}

build_deb() {
  local deb=$out/$2_${version}_amd64.deb
  dpkg-deb --root-owner-group -Zxz -z1 --build "$1" "$deb" >/dev/null
  check_size "$deb"
}

# install_command_line_help ROOT: adds the completion of three shells and the manual page, as the binary prints them.
install_command_line_help() {
  local share=$1/usr/share
  mkdir -p "$share"/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d,man/man1}
  "$build/bin/tensorcast" completion bash >"$share/bash-completion/completions/tensorcast"
  "$build/bin/tensorcast" completion zsh >"$share/zsh/vendor-completions/_tensorcast"
  "$build/bin/tensorcast" completion fish >"$share/fish/vendor_completions.d/tensorcast.fish"
  "$build/bin/tensorcast" completion man | gzip -9n >"$share/man/man1/tensorcast.1.gz"
}

make_runtime_deb() {
  local root=$work/deb
  mkdir -p "$root"/usr/{bin,lib/tensorcast,lib/systemd/system,lib/sysusers.d,share/doc/tensorcast/docs/{pictures,reference}} \
    "$root/etc/tensorcast"
  cp -r "$work/runtime/." "$root/usr/lib/tensorcast/"
  ln -s ../lib/tensorcast/bin/tensorcast "$root/usr/bin/tensorcast"
  install -m 0644 "$here"/debian/*.service "$root/usr/lib/systemd/system/"
  install -m 0644 "$here/debian/tensorcast.sysusers" "$root/usr/lib/sysusers.d/tensorcast.conf"
  install -m 0644 "$here"/debian/*.yaml "$root/etc/tensorcast/"
  install -m 0644 "$here/../../README.md" "$here/../../SECURITY.md" "$root/usr/share/doc/tensorcast/"
  install -m 0644 "$here/debian/tensorcast.copyright" "$root/usr/share/doc/tensorcast/copyright"
  install_command_line_help "$root"
  install -m 0644 "$here"/../../docs/*.md "$root/usr/share/doc/tensorcast/docs/"
  install -m 0644 "$here"/../../docs/reference/*.md "$root/usr/share/doc/tensorcast/docs/reference/"
  install -m 0644 "$here"/../../docs/pictures/*.svg "$root/usr/share/doc/tensorcast/docs/pictures/"
  control "$root" tensorcast
  printf '/etc/tensorcast/%s\n' daemon.yaml global-store.yaml >"$root/DEBIAN/conffiles"
  install -m 0755 "$here"/debian/{postinst,prerm,postrm} "$root/DEBIAN/"
  build_deb "$root" tensorcast
}

make_development_deb() {
  local root=$work/dev
  cmake --install "$build" --prefix "$root/usr" --component development --strip >/dev/null
  install -D -m 0644 "$here/debian/tensorcast-dev.copyright" "$root/usr/share/doc/tensorcast-dev/copyright"
  control "$root" tensorcast-dev
  build_deb "$root" tensorcast-dev
}

stage "$work/runtime"
make_archive
$archive_only && exit 0
make_runtime_deb
make_development_deb
