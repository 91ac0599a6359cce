#!/usr/bin/env bash
# Runs every test, as root: they mount file systems, in mount namespaces of their own, and leave
# nothing behind. Installs what they need. A test that fails fails the run; only those listed in
# tests/unstable.toml are tried a second time.
#
#   scripts/test.sh                                     everything
#   scripts/test.sh -E 'package(fuse)'                  some, by any filter of cargo-nextest
#   scripts/test.sh -E 'test(/^copyup::/)' --no-capture
#
# STRATA_TEST_MINUTES=60: the run is ended, and fails, after this time.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/test-steps.sh

need_root test
need_session scripts/test.sh "$@"
trap 'exit 130' INT TERM
use_uring
trap release_uring EXIT
prepare_tests

# One run names every failure: nothing below stops at the first.
failed=()
lists=$(mktemp -d)
scripts/unstable.py >"$lists/unstable.toml"
export STRATA_SKIPPED=$lists/skipped
: >"$STRATA_SKIPPED"
trap 'release_uring; rm -rf "$lists"' EXIT

step "Tests"
# --foreground: control-C reaches the tests. They don't inherit the lock of the io_uring switch,
# which a server that a test left behind would hold.
timeout --foreground -k 60 "${STRATA_TEST_MINUTES:-60}m" cargo nextest run --locked --workspace \
	--tool-config-file "strata:$lists/unstable.toml" "$@" {uring_lock}>&- ||
	failed+=("tests (status $?)")
if (($# == 0)); then
	for name in "${other_tests[@]}"; do
		run_other_test "$name" || failed+=("$name")
	done
fi
if [[ $builder != root ]]; then
	chown -R "$builder:" "$target"
fi
if [[ -s $STRATA_SKIPPED ]]; then
	step "Skipped tests: $(sort -u "$STRATA_SKIPPED" | wc -l)"
	sort -u "$STRATA_SKIPPED" | sed 's/^/    /'
fi
if ((${#failed[@]})); then
	report_stuck_processes
	printf 'failed: %s\n' "${failed[@]}" >&2
	exit 1
fi
