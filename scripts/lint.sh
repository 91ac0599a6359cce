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
step "cargo doc, with private items"
as_builder env RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --quiet --locked --workspace --no-deps --document-private-items
if command -v shellcheck >/dev/null; then
	step "shellcheck"
	boot=$(git ls-files boot)
	mapfile -t scripts < <(xargs grep -l '^#!' <<<"$boot")
	shellcheck -x -S warning -e SC1091 scripts/*.sh crates/cli/tests/it/docs/*.sh .ci/run "${scripts[@]}"
else
	note "shellcheck is not installed: scripts not checked; run make deps"
fi
step "Dependencies between crates"
scripts/layering.sh
step "The list of unstable tests"
scripts/unstable.py --check
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
tools=$(scripts/tools.sh cargo-deny cargo-machete)
step "Unused dependencies"
as_builder "$tools/cargo-machete"
step "cargo deny"
as_builder "$tools/cargo-deny" --all-features check licenses bans sources
if as_builder "$tools/cargo-deny" fetch db >/dev/null 2>&1; then
	as_builder "$tools/cargo-deny" --all-features check advisories
else
	note "can't fetch the advisories from github.com/RustSec/advisory-db: advisories not checked"
fi
