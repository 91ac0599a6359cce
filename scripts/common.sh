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
