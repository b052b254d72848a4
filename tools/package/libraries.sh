#!/usr/bin/env bash
# Which shared libraries a package carries, and how they get into it: for make_package.sh and make_wheel.sh, which source
# this after they have defined die().

# What a system with glibc >= 2.36 and a C++ program on it has, and what belongs to the machine's RDMA drivers.
is_of_the_system() {
  case $1 in
    linux-vdso.so.* | ld-linux-x86-64.so.* | libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | \
      libresolv.so.* | libgcc_s.so.* | libstdc++.so.*) return 0 ;;
    libibverbs.so.* | librdmacm.so.* | libmlx5.so.* | libnl-3.so.* | libnl-route-3.so.*) return 0 ;;
  esac
  return 1
}

# copy_libraries ELF FOLDER: every shared library that ELF needs, by the name it is needed under.
copy_libraries() {
  local name path listing
  listing=$(ldd "$1")
  while read -r name path; do
    is_of_the_system "$name" && continue
    [[ $path == /* ]] || die "$1 needs $name, which is not on this machine"
    [[ -e $2/$name ]] || install -m 0644 "$path" "$2/$name"
  done < <(awk '$2 == "=>" {print $1, ($3 == "not" ? "missing" : $3)}' <<<"$listing")
}

# copy_ucx_modules BINARY LIB: what UCX loads at run time, from the folder ucx/ beside its own library, by the names that
# end in .so.0; and the libraries that these need.
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
  rm -f "$2"/libuct_*.so.*  # modules that modules need: they are in ucx/
}
