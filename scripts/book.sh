#!/usr/bin/env bash
# Builds the documentation as a searchable book in target/book. Installs mdBook into cache/tools if
# it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

version=0.5.4
root=$PWD/cache/tools/mdbook-$version
if [[ ! -x $root/bin/mdbook ]]; then
	step "Installing mdBook $version (once, about two minutes)"
	as_builder mkdir -p "$root"
	as_builder cargo install --quiet --locked --debug --no-default-features --features search \
		--root "$root" --target-dir "${CARGO_TARGET_DIR:-target}/mdbook" "mdbook@$version"
fi
step "Building the book"
as_builder "$root/bin/mdbook" build
note "target/book/index.html"
