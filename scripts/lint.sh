#!/usr/bin/env bash
# Formatting, clippy without a warning, the scripts, and the dependencies' licences and advisories.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

step "cargo fmt"
as_builder cargo fmt --all --check
step "cargo clippy"
as_builder cargo clippy --locked --workspace --all-targets -- -D warnings
if command -v shellcheck >/dev/null; then
	step "shellcheck"
	shellcheck -x -S warning -e SC1091 scripts/*.sh .ci/run
else
	note "shellcheck is not installed (make deps): scripts not checked"
fi
step "Which crate uses which"
scripts/layering.sh
step "Modules that import each other in a circle"
# hostfs and server still have such circles.
mapfile -t crates < <(find crates -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | grep -vx -e hostfs -e server | sort)
scripts/import-cycles.sh "${crates[@]}"
step "Crates in ARCHITECTURE.md"
scripts/crates.sh --check
step "Lines of code in the docs"
scripts/count-layers.sh --check
if as_builder cargo deny --version >/dev/null 2>&1; then
	step "cargo deny"
	as_builder cargo deny --all-features check licenses bans sources
	if as_builder cargo deny fetch db >/dev/null 2>&1; then
		as_builder cargo deny --all-features check advisories
	else
		note "the advisories can't be fetched (github.com/RustSec/advisory-db): not checked"
	fi
else
	note "cargo-deny is not installed (cargo install --locked cargo-deny): licences and advisories not checked"
fi
