#!/usr/bin/env bash
# Copies the shared libraries of a package into it. make_package.sh and make_wheel.sh source this file after they define
# die().

# True for the libraries of every system with glibc >= 2.36 and a C++ program, and for those of the RDMA drivers.
is_of_the_system() {
  case $1 in
    linux-vdso.so.* | ld-linux-x86-64.so.* | libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | \
      libresolv.so.* | libgcc_s.so.* | libstdc++.so.*) return 0 ;;
    libibverbs.so.* | librdmacm.so.* | libmlx5.so.* | libnl-3.so.* | libnl-route-3.so.*) return 0 ;;
  esac
  return 1
}

# copy_libraries ELF FOLDER: copies every shared library that ELF needs, under the name in ELF.
copy_libraries() {
  local name path listing
  listing=$(ldd "$1")
  while read -r name path; do
    is_of_the_system "$name" && continue
    [[ $path == /* ]] || die "$1 needs $name, which this machine does not have"
    [[ -e $2/$name ]] || install -m 0644 "$path" "$2/$name"
  done < <(awk '$2 == "=>" {print $1, ($3 == "not" ? "missing" : $3)}' <<<"$listing")
}

# copy_ucx_modules BINARY LIB: copies the modules that UCX loads at run time, and the libraries that these need. UCX loads
# them from the folder ucx/ beside its own library, under names that end in .so.0.
copy_ucx_modules() {
  local ucs modules module
  mkdir -p "$2/ucx"
  ucs=$(ldd "$1" | awk '$1 ~ /^libucs\.so/ {print $3}')
  modules=$(dirname "$(readlink -f "$ucs")")/ucx
  for module in "$modules"/libuct_*.so.0; do
    [[ -e $module ]] || continue
    install -m 0644 "$module" "$2/ucx/$(basename "$module")"
    copy_libraries "$module" "$2"
  done
  rm -f "$2"/libuct_*.so.*  # modules that other modules need are in ucx/ already
}

# copy_licences LIB FOLDER: copies into FOLDER the licences of the libraries in LIB, and of those that are linked statically
# or are headers only: the copyright file of each Debian package, under the package's name. BLAKE3 is used under the same
# licence as TensorCast.
copy_licences() {
  local patterns=() library packages package
  for library in "$1"/*.so* "$1"/ucx/*.so*; do
    [[ -e $library ]] && patterns+=("*/x86_64-linux-gnu/${library#"$1/"}")
  done
  mkdir -p "$2"
  packages=$(dpkg-query --search "${patterns[@]}" | cut -d: -f1 | sort -u) || die "a library of $1 is from no Debian package"
  for package in $packages libabsl-dev libcli11-dev nlohmann-json3-dev; do
    install -m 0644 "/usr/share/doc/$package/copyright" "$2/$package"
  done
}
