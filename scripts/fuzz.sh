#!/usr/bin/env bash
# Runs fuzz targets for FUZZ_SECONDS seconds each (60). Installs cargo-fuzz, and needs a nightly
# toolchain of Rust. `make test` checks the same properties with random input (proptest).
#
#   scripts/fuzz.sh                        every target
#   scripts/fuzz.sh crates/fuse:request    this one
#   scripts/fuzz.sh --list                 their names
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

# Prints every target as CRATE:TARGET.
targets() {
	local manifest
	git ls-files '*/fuzz/Cargo.toml' | while read -r manifest; do
		sed -n '/^\[\[bin\]\]/,/^path/ s/^name = "\(.*\)"$/\1/p' "$manifest" | sed "s|^|${manifest%/fuzz/Cargo.toml}:|"
	done
}

if [[ ${1:-} == --list ]]; then
	targets
	exit
fi
mapfile -t all < <(targets)
(($#)) || set -- "${all[@]}"
(($#)) || die "no fuzz targets in this tree"
as_builder cargo +nightly --version >/dev/null 2>&1 ||
	die "fuzz.sh: cargo-fuzz needs a nightly toolchain: run rustup toolchain install nightly"
PATH=$(scripts/tools.sh cargo-fuzz):$PATH
export PATH
seconds=${FUZZ_SECONDS:-60}
for wanted; do
	[[ " ${all[*]} " == *" $wanted "* ]] || die "fuzz.sh: $wanted: no such target; scripts/fuzz.sh --list prints them"
	step "$wanted, $seconds s"
	(cd "${wanted%%:*}" && as_builder cargo +nightly fuzz run "${wanted#*:}" -- -max_total_time="$seconds")
done
