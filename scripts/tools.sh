#!/usr/bin/env bash
# Installs tools from crates.io, each in one version, for every checkout of this user, and prints
# the directory of the programs. Does nothing for those that are installed.
#
#   scripts/tools.sh                      every tool
#   scripts/tools.sh cargo-nextest fsx    these
#
# They are in $STRATA_TOOLS, by default ~/.cache/strata/tools.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

# Tool, version, features, and how to build it: `fast` is optimised; `quick` is compiled in the
# least time, for a program that runs for seconds.
all=(
	"cargo-nextest 0.9.114 default-no-update quick"
	"mdbook 0.5.4 search quick"
	"fsx 0.3.2 - fast"
	"pjdfstest 0.2.2 - fast"
	"cargo-deny 0.18.9 - quick"
	"cargo-machete 0.9.1 - quick"
	"cargo-fuzz 0.13.1 - quick"
)

install_tool() { # NAME VERSION FEATURES BUILD
	local stamp=$tools/.$1-$2 arguments=()
	[[ -e $stamp && -x $tools/bin/$1 ]] && return
	printf '    installing %s %s from crates.io\n' "$1" "$2" >&2
	[[ $3 == - ]] || arguments+=(--no-default-features --features "$3")
	[[ $4 == fast ]] || arguments+=(--debug)
	as_builder env CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 \
		cargo install --quiet --locked --force "${arguments[@]}" \
		--root "$tools" --target-dir "$tools/build" --version "$2" "$1" >&2 ||
		die "tools.sh: $1 $2 can't be installed: see above"
	rm -f "$tools/.$1-"[0-9]*
	as_builder touch "$stamp"
}

tools=$(tools_directory)
as_builder mkdir -p "$tools"
# Two runs at once would build in one directory.
as_builder touch "$tools/.lock"
exec 9<"$tools/.lock"
flock 9
if (($# == 0)); then
	for tool in "${all[@]}"; do
		set -- "$@" "${tool%% *}"
	done
fi
for name; do
	known=no
	for tool in "${all[@]}"; do
		if [[ $name == "${tool%% *}" ]]; then
			known=yes
			# shellcheck disable=SC2086 # four words
			install_tool $tool
		fi
	done
	[[ $known == yes ]] || die "tools.sh: $name: unknown tool; expected one of: $(printf '%s ' "${all[@]%% *}")"
done
rm -rf "$tools/build"
printf '%s\n' "$tools/bin"
