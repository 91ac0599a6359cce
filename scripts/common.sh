# shellcheck shell=bash
# Shared by the scripts: terminal output, and the user who runs cargo.

if [[ -t 1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
	bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' yellow=$'\e[33m' blue=$'\e[34m' plain=$'\e[0m'
else
	bold='' dim='' red='' green='' yellow='' blue='' plain=''
fi
export bold dim red green yellow blue plain

# Prints a heading.
step() { printf '\n%s==> %s%s\n' "$bold$blue" "$*" "$plain"; }
# Prints a remark, indented.
note() { printf '    %s\n' "$*"; }
# Prints a command, runs it and indents its output.
shown() {
	printf '    %s$ %s%s\n' "$bold" "$*" "$plain"
	"$@" 2>&1 | sed 's/^/      /'
	return "${PIPESTATUS[0]}"
}
warn() { printf '%s%s%s\n' "$yellow" "$*" "$plain" >&2; }
die() {
	printf '%serror:%s %s\n' "$bold$red" "$plain" "$*" >&2
	exit 1
}

need_root() {
	((EUID == 0)) || die "$1 needs root (mounts, loop devices): sudo make ${2:-$1}"
}

# Under sudo, the calling user runs cargo: with that user's toolchain, and without leaving files of
# root in the tree.
builder=root
if ((EUID == 0)) && [[ -n ${SUDO_USER:-} && $SUDO_USER != root ]] && id "$SUDO_USER" >/dev/null 2>&1; then
	builder=$SUDO_USER
elif ((EUID != 0)); then
	builder=$(id -un)
fi
builder_home=$(getent passwd "$builder" | cut -d: -f6)

as_builder() {
	local path="$builder_home/.cargo/bin:$PATH"
	if [[ $builder == "$(id -un)" ]]; then
		PATH=$path "$@"
	else
		runuser -u "$builder" -- env "HOME=$builder_home" "PATH=$path" "$@"
	fi
}

# Prints the oldest Rust version that builds the workspace, from its manifest.
wanted_rust() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml; }

have_rust() {
	local version
	version=$(as_builder "${CARGO:-cargo}" --version 2>/dev/null | awk '{print $2}') || return 1
	[[ -n $version ]] && [[ $(printf '%s\n%s\n' "$(wanted_rust)" "$version" | sort -V | head -n 1) == "$(wanted_rust)" ]]
}

# Prints the directory of the tools from crates.io, which scripts/tools.sh installs.
tools_directory() { printf '%s\n' "${STRATA_TOOLS:-$builder_home/.cache/strata/tools}"; }

# FUSE over io_uring is a switch of the machine: runs of several checkouts share it. The first one
# turns it on, the last one restores it.
uring_switch=/sys/module/fuse/parameters/enable_uring
uring_users=/run/lock/strata-uring
uring_lock=
use_uring() {
	if [[ ! -w $uring_switch ]]; then
		exec {uring_lock}>/dev/null
		return
	fi
	exec {uring_lock}>>"$uring_users"
	# No other run is under way if the exclusive lock is free: the switch has the user's value.
	if flock -n -x "$uring_lock"; then
		cat "$uring_switch" >"$uring_users.before"
		[[ $(<"$uring_switch") == Y ]] ||
			note "FUSE over io_uring is off on this machine: on for the tests ($uring_switch), then off again."
		echo Y >"$uring_switch"
	fi
	flock -s "$uring_lock"
}
release_uring() {
	[[ -w $uring_switch ]] && flock -n -x "$uring_lock" || return 0
	cat "$uring_users.before" >"$uring_switch"
}

# Prints the processes that wait in the kernel and can't be killed, with their stacks. Each may be
# the fault of a test that failed, and keeps file systems mounted, so that later tests hang. Prints
# no command lines, since reading that of a stuck process can hang, too.
report_stuck_processes() {
	local pid name
	while read -r pid name; do
		warn "stuck in the kernel: $pid $name"
		cat "/proc/$pid/task/"*/stack 2>/dev/null | head -n 40 >&2 || true
	done < <(ps -eo pid=,ppid=,stat=,comm= | awk '$2 != 2 && $3 ~ /^[DZ]/ { print $1, $4, "(" $3 ")" }')
}

# The tests of sessions' keys need a session. A process whose session began outside of its PID
# namespace, as in a container, has none. Runs the script anew in a session then.
need_session() { # SCRIPT ARGUMENT...
	local fields session
	# Process name and state end with the last bracket; parent, group and session follow.
	fields=$(<"/proc/$$/stat")
	read -r _ _ _ session _ <<<"${fields##*) }"
	[[ $session != 0 ]] || exec setsid -w "$@"
}
