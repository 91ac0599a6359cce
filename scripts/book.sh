#!/usr/bin/env bash
# Builds the documentation as a searchable book in target/book. Fails on warnings, on dead links and
# without a search index. Installs mdBook into cache/tools (or $STRATA_TOOLS) if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

version=0.5.4
target=${CARGO_TARGET_DIR:-target}
root=${STRATA_TOOLS:-$PWD/cache/tools}/mdbook-$version
if [[ ! -x $root/bin/mdbook ]]; then
	step "Installing mdBook $version (once, about two minutes)"
	as_builder mkdir -p "$root"
	# Unoptimised, without debug information and its server: the least that can build a book.
	as_builder env CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 \
		cargo install --quiet --locked --debug --no-default-features --features search \
		--root "$root" --target-dir "$target/mdbook" "mdbook@$version"
	rm -rf "$target/mdbook"
fi
step "Building the book"
rm -rf target/book
log=$(as_builder "$root/bin/mdbook" build 2>&1) || die "mdbook: $log"
if grep -E '\b(WARN|ERROR)\b' <<<"$log" >&2; then
	die "book.sh: mdBook reports the problems above"
fi
scripts/book-links.py target/book || die "book.sh: the book has the dead links above"
grep -q whiteout target/book/searchindex*.js || die "book.sh: target/book: the search index is missing or empty"
note "target/book/index.html"
