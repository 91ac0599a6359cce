#!/usr/bin/env bash
# Spelling, line width and our own bad habits, in comments and pages. Prints each finding as PATH:LINE: WHAT.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

# Words that codespell takes for mistakes: names of the language, of the protocol and of examples.
words=crate,crates,ot,te,fo,fro,nd,ro,som,nin,openin,inflight,debians,chache,ser
# Expressions that a reader has to translate. Each has a usual word.
habits='\b[Ll]ook-ups?\b|\b[Bb]ehind (its|our|the union.s|the) back\b|\b[Ww]hoever\b|\bfor ever\b|\bgives? way\b'

mapfile -t pages < <(git ls-files '*.md')
mapfile -t sources < <(git ls-files '*.rs' '*.sh' '*.c' '*.h')
wrong=0
report() {
	[[ -z $1 ]] && return
	printf '%s\n' "$1" >&2
	wrong=1
}

if command -v codespell >/dev/null; then
	report "$(codespell -q 3 -L "$words" "${pages[@]}" "${sources[@]}" || true)"
else
	note "codespell is not installed (make deps): spelling not checked"
fi
# Tables, links and code blocks of pages may be wider.
report "$(awk '
	FNR == 1 { code = 0 }
	/^ *```/ { code = !code }
	!code && length($0) > 100 && !/^ *\|/ && !/\]\(/ && !/^<!--/ { print FILENAME ":" FNR ": wider than 100 columns" }
' "${pages[@]}")"
report "$(awk '/^ *(\/\/|#)/ && length($0) > 100 && !/https?:/ { print FILENAME ":" FNR ": a comment wider than 100 columns" }' "${sources[@]}")"
report "$(grep -nE "$habits" "${pages[@]}" || true)"
report "$(grep -nE "^ *//.*($habits)" "${sources[@]}" || true)"
((wrong == 0)) || die "prose: see above, and CONTRIBUTING.md"
