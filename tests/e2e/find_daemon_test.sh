#!/usr/bin/env bash
# Tests that every client finds its host's daemon without an argument: a daemon that runs as the package's service, one that
# a user starts, and one that is started by hand. The test has /run and /var/lib of its own, in a mount namespace.
#
#   tests/e2e/find_daemon_test.sh TENSORCAST_BINARY FIND_DAEMON_BINARY [PYTHON PYTHONPATH]
#
# Exit code 77: this machine cannot run the test, and the output says why.
set -euo pipefail
say() { echo "find daemon: $*"; }
skip() { say "skipped: $*"; exit 77; }

if [[ ${1:-} != --inside ]]; then
  [[ $EUID -eq 0 ]] || skip "only root can redirect /run/tensorcast and become other users"
  unshare --mount --pid --fork --mount-proc true 2>/dev/null || skip "this machine allows no namespaces (unshare)"
  work=$(mktemp -d)
  trap 'rmdir "$work"' EXIT  # what is written to it is in a tmpfs, which ends with the namespace
  code=0
  unshare --mount --pid --fork --kill-child --mount-proc "$0" --inside "$work" "$@" || code=$?
  exit "$code"
fi

work=$2 tensorcast=$(realpath "$3") find_daemon=$(realpath "$4") python=${5:-} python_path=${6:-}
config=$(dirname "$(realpath "$0")")/../../tools/package/debian/daemon.yaml
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$work" || skip "this machine allows no mounts"
mkdir "$work/bin"
cp "$tensorcast" "$find_daemon" "$work/bin"  # every user can run them there
tensorcast=$work/bin/$(basename "$tensorcast")
find_daemon=$work/bin/$(basename "$find_daemon")
unset TENSORCAST_DAEMON
servers=()
fail() {
  say "FAILED: $*"
  tail -n 30 "$work"/log* "$work"/error* 2>/dev/null
  exit 1
}

# A host after its boot: nothing in /run/tensorcast and /var/lib/tensorcast.
boot() {
  mount -t tmpfs -o mode=755 tmpfs /run
  mount -t tmpfs -o mode=755 tmpfs /var/lib
}

# become UID:GID [VARIABLE=VALUE...]: the command prefix `as` runs a program as that user, with only that group, a home
# folder of its own and only these variables.
become() {
  local ids=$1
  shift
  local home=$work/home-${ids%:*}
  [[ -d $home ]] || install -d -o "${ids%:*}" -g "${ids#*:}" -m 0700 "$home"
  as=(setpriv "--reuid=${ids%:*}" "--regid=${ids#*:}" --clear-groups env -i "HOME=$home" "PATH=$PATH" "$@")
}

# start ARGUMENT...: a daemon of the user that `as` is, until it serves. Its process id is the last of `servers`.
start() {
  mkfifo "$work/ready"
  "${as[@]}" "$tensorcast" daemon "$@" --ready-fd 9 9>"$work/ready" >"$work/log-${#servers[@]}" 2>&1 &
  servers+=($!)
  read -r -t 60 <"$work/ready" || fail "daemon $* does not start"
  rm "$work/ready"
}

# stop SIGNAL: ends the daemon that was started last.
stop() {
  kill "-$1" "${servers[-1]}"
  wait "${servers[-1]}" || true
  unset 'servers[-1]'
}

# finds ADDRESS NAME: every client of the user that `as` is finds that daemon.
finds() {
  local found
  found=$("${as[@]}" "$find_daemon" 2>"$work/error") || fail "C++ finds no daemon, and not $1"
  [[ $found == "$1" ]] || fail "C++ finds $found, not $1"
  found=$("${as[@]}" "$tensorcast" status --json 2>"$work/error") || fail "the command line finds no daemon, and not $1"
  grep -q "\"name\": *\"$2\"" <<<"$found" || fail "the command line finds another daemon than $2: $found"
  [[ -n $python ]] || return 0
  found=$("${as[@]}" "PYTHONPATH=$python_path" "$python" -B -c 'import tensorcast; print(tensorcast.connect().daemon)' \
    2>"$work/error") || fail "Python finds no daemon, and not $1"
  [[ $found == "$1" ]] || fail "Python finds $found, not $1"
}

# refused TEXT ARGUMENT...: the command fails and says so.
refused() {
  local text=$1
  shift
  if "${as[@]}" "$tensorcast" "$@" >"$work/error" 2>&1; then fail "$* succeeds"; fi
  grep -qF -e "$text" "$work/error" || fail "$* says another thing than: $text"
}

small=(--set daemon.host_pool=192MiB --set daemon.device_runtime=none)
system=/run/tensorcast
boot
header='{"x":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'
printf '%b%s%s' "\\x$(printf '%x' "${#header}")\\0\\0\\0\\0\\0\\0\\0" "$header" 12345678 >"$work/model.safetensors"

# As the package does it: the unit's user and folders, and the shipped configuration, for the members of the user's group.
install -d -o 1 -g 1 -m 0755 "$system"
install -d -o 1 -g 1 -m 0700 /var/lib/tensorcast
sed -e '/^ *global_store:/d' -e '/^ *import_roots:/d' -e 's/^\( *handle_groups:\).*/\1 [daemon]/' "$config" >"$work/daemon.yaml"
become 1:1
start --config "$work/daemon.yaml" "${small[@]}" --set daemon.name=service
finds "unix:$system/daemon.sock" service
become 65534:1
finds "unix:$system/client.sock" service
become 0:0
finds "unix:$system/client.sock" service
become 5:60
refused "connect to $system/client.sock: user 5 may not" ls
become 0:0
for command in "config check --role daemon" daemon; do
  # shellcheck disable=SC2086  # the words of a command
  refused "use folder $system: the folder belongs to user 1" $command "${small[@]}"
done
say "every client finds the package's service"

# A client may pin what its own calls make, and no more. What it may not do names the role, the socket and the remedy.
become 65534:1
"${as[@]}" "$tensorcast" put "$work/model.safetensors" --key m --pin >"$work/error" 2>&1 || fail "a client's put --pin fails"
"${as[@]}" "$tensorcast" get m --pin >"$work/error" 2>&1 || fail "a client's get --pin fails"
"${as[@]}" "$tensorcast" replica ls --json >"$work/error" 2>&1 || fail "a client's replica ls fails"
grep -q '"pinned": *true' "$work/error" || fail "the replica is not pinned"
refused "call GlobalStore/DeleteKey: the call requires the role operator, and the socket $system/client.sock grants the\
 role client; connect to\
 $system/daemon.sock as user daemon (uid 1)" rm m --force

# As a user does it: that daemon comes before the service's, until it is gone, even if its sockets stay.
install -d -o 65534 -g 65534 -m 0700 "$work/runtime"
become 65534:1 "XDG_RUNTIME_DIR=$work/runtime"
start "${small[@]}" --set daemon.name=own
finds "unix:$work/runtime/tensorcast/daemon.sock" own
become 0:0 "XDG_RUNTIME_DIR=$work/runtime"
finds "unix:$system/client.sock" service
stop KILL
[[ -S $work/runtime/tensorcast/daemon.sock ]] || fail "a killed daemon leaves no socket"
become 65534:1 "XDG_RUNTIME_DIR=$work/runtime"
finds "unix:$system/client.sock" service
# Without a folder for sockets, as from cron: they are in the state folder, where every client of the user looks, too.
become 65534:1
start "${small[@]}" --set daemon.name=own
for runtime in "" "$work/runtime"; do
  become 65534:1 "XDG_RUNTIME_DIR=$runtime"
  finds "unix:$work/home-65534/.local/state/tensorcast/daemon.sock" own
done
stop TERM
stop TERM
say "every client finds a user's daemon"

# By hand, as root: the system's folder, and a state folder of its own, which TENSORCAST_DAEMON names.
boot
become 0:0
start "${small[@]}" --set daemon.name=hand --set daemon.handle_groups=nogroup
finds "unix:$system/daemon.sock" hand
become 65534:65534
finds "unix:$system/client.sock" hand
become 0:0
start "${small[@]}" --set daemon.name=other --set "daemon.state_dir=$work/other"
finds "unix:$system/daemon.sock" hand
become 0:0 "TENSORCAST_DAEMON=$work/other/daemon.sock"
finds "unix:$work/other/daemon.sock" other
stop TERM
stop TERM
become 0:0
refused "no daemon listens at $system/client.sock; start a daemon with" ls
say "every client finds a daemon that was started by hand"
