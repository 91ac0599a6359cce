#!/usr/bin/env bash
# Checks comments and pages for spelling, line width and unidiomatic expressions. Prints each
# finding as PATH:LINE: WHAT.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

# Correct words that codespell reports: terms of the language and the protocol, and names in
# examples.
words=hoever,crate,crates,ot,te,fo,fro,nd,ro,som,nin,openin,inflight,debians,chache,ser,statics
# Unidiomatic expressions, for which a usual term exists.
habits='\b[Ll]ook-ups?\b|\b[Bb]ehind (its|our|the union.s|the) back\b|\b[Ww]hoever\b|\bfor ever\b|\bgives? way\b'

# In assignments, a failure of git ends the script.
pages=$(git ls-files '*.md')
sources=$(git ls-files '*.rs' '*.sh' '*.c' '*.h')
mapfile -t pages <<<"$pages"
mapfile -t sources <<<"$sources"
wrong=0
report() {
	[[ -z $1 ]] && return
	printf '%s\n' "$1" >&2
	wrong=1
}

if command -v codespell >/dev/null; then
	report "$(codespell -q 3 -L "$words" "${pages[@]}" "${sources[@]}" || true)"
else
	note "codespell is not installed: spelling not checked; run make deps"
fi
# Tables, links, code blocks and the generated part of benchmarks.md may be wider. Lines that begin
# with #[ or #![ are attributes. Widths count characters: bytes, without UTF-8 continuation bytes.
report "$(LC_ALL=C awk '
	FNR == 1 { code = generated = 0 }
	/^ *```/ { code = !code }
	/^<!-- measured: / { generated = /begin/ }
	{ gsub(/[\200-\277]/, "") }
	!code && !generated && length($0) > 100 && !/^ *\|/ && !/\]\(/ && !/^<!--/ { print FILENAME ":" FNR ": wider than 100 columns" }
' "${pages[@]}")"
report "$(LC_ALL=C awk '
	{ gsub(/[\200-\277]/, "") }
	/^[ \t]*(\/\/|#([^[!]|![^[]|$))/ && length($0) > 100 && !/https?:/ && !/^[ \t]*\/\/[\/!]? \|/ { print FILENAME ":" FNR ": a comment wider than 100 columns" }
' "${sources[@]}")"
report "$(grep -nE "$habits" "${pages[@]}" || true)"
report "$(grep -nE "^ *//.*($habits)" "${sources[@]}" || true)"
((wrong == 0)) || die "prose.sh: found the problems above: see CONTRIBUTING.md"
