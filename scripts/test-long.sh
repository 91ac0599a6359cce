#!/usr/bin/env bash
# Runs everything at full length, as a release must: all seeds and rounds of every test, the fuzz
# targets for ten minutes each, then what else `make test` runs. Takes many hours, and can be
# interrupted: it goes on with the next part that has not passed for this commit.
#
#   scripts/test-long.sh                  go on, or begin
#   scripts/test-long.sh --status         list the parts that passed, failed and remain
#   scripts/test-long.sh --anew           begin again with the first part
#   scripts/test-long.sh 'package(fuse)'  only the tests of this filter of cargo-nextest
#
# A part is the tests of one module, or one fuzz target. FUZZ_SECONDS=600 changes the second.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/test-steps.sh

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
commit=$(git rev-parse HEAD)
# Uncommitted changes count as another commit.
changes=$( (git diff HEAD && git ls-files -z -o --exclude-standard | xargs -0r sha256sum) | sha256sum)
[[ -z $(git status --porcelain) ]] || commit+=-${changes:0:8}
state=$target/test-long/$commit
filter=
case ${1:-} in
--status | --anew) ;;
-*) die "test-long.sh: $1: unknown option; see the top of scripts/test-long.sh" ;;
*) filter=${1:-} ;;
esac

# Prints a summary of the parts, and fails unless all have passed.
summary() {
	local part passed=0 failed=() left=()
	while read -r part; do
		case $(cat "$state/results/${part//\//%}" 2>/dev/null) in
		passed) passed=$((passed + 1)) ;;
		failed) failed+=("$part") ;;
		*) left+=("$part") ;;
		esac
	done <"$state/parts"
	step "Long tests of ${commit:0:12}: $passed parts passed, ${#failed[@]} failed, ${#left[@]} are left"
	((${#failed[@]} == 0)) || printf '    failed: %s\n' "${failed[@]}"
	[[ ! -s $state/skipped ]] || sort -u "$state/skipped" | sed 's/^/    skipped: /'
	((${#failed[@]} + ${#left[@]} == 0))
}

if [[ ${1:-} == --status ]]; then
	[[ -e $state/parts ]] || die "test-long.sh: nothing was run for ${commit:0:12}: run make test-long"
	summary
	exit
fi
need_root test-long
need_session scripts/test-long.sh "$@"
trap 'exit 130' INT TERM
as_builder mkdir -p "$target"
mkdir -p "$target/test-long"
exec 8>"$target/test-long/lock"
flock -n 8 || die "test-long.sh: another run is under way in $target/test-long"
[[ ${1:-} != --anew ]] || rm -rf "$state"
mkdir -p "$state/results" "$state/logs"

export STRATA_TEST_LONG=1 STRATA_SKIPPED=$state/skipped PROPTEST_CASES=${PROPTEST_CASES:-5000}
prepare_tests
use_uring
cleanup() {
	release_uring
	[[ $builder == root ]] || chown -R "$builder:" "$target"
}
trap cleanup EXIT

# Prints the modules of the tests as PROGRAM MODULE; unit tests of a crate are one module.
modules() {
	cargo nextest list --locked --workspace --message-format json ${filter:+-E "$filter"} | python3 -c '
import json, sys
modules = set()
for program, suite in json.load(sys.stdin)["rust-suites"].items():
    for test, case in suite["testcases"].items():
        if case["filter-match"]["status"] == "matches":
            modules.add((program, test.split("::")[0] if program.endswith("::it") and "::" in test else "*"))
modules or sys.exit("error: test-long.sh: no test matches the filter")
print("\n".join(" ".join(module) for module in sorted(modules)))'
}
{
	modules
	if [[ -z $filter ]]; then
		scripts/fuzz.sh --list | sed 's/^/fuzz /'
		printf 'script %s\n' "${other_tests[@]}"
	fi
} >"$state/parts.new"
mv "$state/parts.new" "$state/parts"

run_part() { # KIND NAME
	case $1 in
	fuzz) FUZZ_SECONDS=${FUZZ_SECONDS:-600} scripts/fuzz.sh "$2" ;;
	script) run_other_test "$2" ;;
	*)
		local module="binary_id(=$1)"
		[[ $2 == '*' ]] || module+=" & test(/^$2(::|\$)/)"
		[[ -z $filter ]] || module+=" & ($filter)"
		cargo nextest run --locked --workspace --profile long -E "$module"
		;;
	esac
}

count=$(wc -l <"$state/parts")
number=0
while read -r -u 7 kind name; do
	number=$((number + 1))
	part="$kind $name"
	result=$state/results/${part//\//%}
	[[ $(cat "$result" 2>/dev/null) != passed ]] || continue
	log=$state/logs/${part//[\/ ]/%}.log
	step "$number of $count: $part"
	start=$SECONDS
	# Without the locks, which what a test left behind would hold.
	if run_part "$kind" "$name" >"$log" 2>&1 8>&- 7>&- {uring_lock}>&- </dev/null; then
		echo passed >"$result"
		note "passed in $((SECONDS - start)) s"
	else
		echo failed >"$result"
		tail -n 30 "$log"
		warn "failed: the whole output is in $log"
		report_stuck_processes
	fi
done 7<"$state/parts"
summary
