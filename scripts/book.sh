#!/usr/bin/env bash
# Builds the documentation as a searchable book in target/book. Fails on warnings, on dead links and
# without a search index. Installs mdBook if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

mdbook=$(scripts/tools.sh mdbook)/mdbook
step "Building the book"
rm -rf target/book
log=$(as_builder "$mdbook" build 2>&1) || die "mdbook: $log"
if grep -E '\b(WARN|ERROR)\b' <<<"$log" >&2; then
	die "book.sh: mdBook reports the problems above"
fi
scripts/book-links.py target/book || die "book.sh: the book has the dead links above"
grep -q whiteout target/book/searchindex*.js || die "book.sh: target/book: the search index is missing or empty"
note "target/book/index.html"
