#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS seconds. Needs cargo-fuzz and a nightly toolchain; without
# them, `make test` checks the same properties with random input (proptest).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

seconds=${FUZZ_SECONDS:-60}
mapfile -t crates < <(find . -path ./target -prune -o -type d -name fuzz -exec test -f '{}/Cargo.toml' \; -printf '%p\n' | sort)
((${#crates[@]} > 0)) || die "no fuzz targets in this tree"
as_builder cargo fuzz --version >/dev/null 2>&1 ||
	die "cargo-fuzz is missing: run cargo install cargo-fuzz and rustup toolchain install nightly"
for crate in "${crates[@]}"; do
	while read -r target; do
		step "$crate: $target, $seconds s"
		(cd "$crate/.." && as_builder cargo +nightly fuzz run "$target" -- -max_total_time="$seconds")
	done < <(cd "$crate/.." && as_builder cargo fuzz list)
done
