#!/usr/bin/env bash
# Checks formatting, clippy warnings, the scripts, the layering, and the dependencies' licences and
# advisories.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

step "cargo fmt"
as_builder cargo fmt --all --check
step "cargo clippy"
as_builder cargo clippy --locked --workspace --all-targets -- -D warnings
if command -v shellcheck >/dev/null; then
	step "shellcheck"
	mapfile -t scripts < <(git ls-files boot | xargs grep -l '^#!')
	shellcheck -x -S warning -e SC1091 scripts/*.sh crates/cli/tests/docs/*.sh .ci/run "${scripts[@]}"
else
	note "shellcheck is not installed: scripts not checked; run make deps"
fi
step "Dependencies between crates"
scripts/layering.sh
step "Import cycles between modules"
# These crates still have import cycles.
cyclic=(-e blockstore -e hostfs -e server -e versionfs)
mapfile -t crates < <(find crates -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | grep -vx "${cyclic[@]}" | sort)
scripts/import-cycles.sh "${crates[@]}"
step "Spelling, width and style of prose"
scripts/prose.sh
step "Crates in ARCHITECTURE.md"
scripts/crates.sh --check
step "Line counts in docs/layers.md"
scripts/count-layers.sh --check
if as_builder cargo deny --version >/dev/null 2>&1; then
	step "cargo deny"
	as_builder cargo deny --all-features check licenses bans sources
	if as_builder cargo deny fetch db >/dev/null 2>&1; then
		as_builder cargo deny --all-features check advisories
	else
		note "can't fetch the advisories from github.com/RustSec/advisory-db: advisories not checked"
	fi
else
	note "cargo-deny is not installed: licences and advisories not checked; run cargo install --locked cargo-deny"
fi
