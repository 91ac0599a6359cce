#!/usr/bin/env bash
# Runs `cargo test` with the given arguments. Tests that fail are run once more, alone: a test that
# fails again, or that takes its whole program down, fails the run. One that passes alone is named
# at the end as unstable: on a busy machine a deadline can pass too early, but the cause may also be
# a race. More than five failures are not tried again.
#
#   scripts/retry-tests.sh --workspace --exclude cli
#   STRATA_TEST_RETRY=no scripts/retry-tests.sh -p unionfs     any failure fails the run
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

most=5
log=$(mktemp)
trap 'rm -f "$log"' EXIT

cargo test --locked --no-fail-fast "$@" 2>&1 | tee "$log" && exit 0
[[ ${STRATA_TEST_RETRY:-yes} == no ]] && exit 1

# Each line: the arguments that select the test program, and the names of its failed tests.
failures=$(awk '
	match($0, /^test .* \.\.\. FAILED$/) { names = names " " substr($0, 6, length($0) - 16) }
	match($0, /to rerun pass `[^`]*`/) {
		print substr($0, RSTART + 15, RLENGTH - 16) "|" names
		names = ""
	}' "$log")
count=$(wc -w <<<"$(sed 's/^.*|//' <<<"$failures")")
if [[ -z $failures ]] || ((count > most)) || grep -q '|$' <<<"$failures" || grep -q -e --doc <<<"$failures"; then
	exit 1
fi
unstable=()
while IFS='|' read -r -u 3 program names; do
	# The same packages as before, or cargo would compile them with other features.
	target=${program#-p * }
	# shellcheck disable=SC2086 # lists of words
	for name in $names; do
		step "$name failed: once more, alone"
		cargo test --locked "$@" $target -- --exact "$name" || die "$name failed twice"
		unstable+=("$name (cargo test $program)")
	done
done 3<<<"$failures"
warn "unstable tests, which failed once and passed when they were run alone:"
printf '    %s\n' "${unstable[@]}" >&2
