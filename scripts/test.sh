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

need_root test
need_session scripts/test.sh "$@"
trap 'exit 130' INT TERM
scripts/deps.sh build test
modprobe -q fuse 2>/dev/null || true
[[ -e /dev/fuse ]] || die "/dev/fuse is missing: load the module (modprobe fuse), or give the container --device /dev/fuse"
scripts/unstable.py --check
use_uring
trap release_uring EXIT

step "Tools from crates.io"
tools=$(scripts/tools.sh cargo-nextest mdbook fsx pjdfstest)
export STRATA_TOOLS=${tools%/bin}
# Root runs the tests, with the cargo of the user who builds.
export PATH="$tools:$builder_home/.cargo/bin:$PATH"
export CARGO_HOME="${CARGO_HOME:-$builder_home/.cargo}" RUSTUP_HOME="${RUSTUP_HOME:-$builder_home/.rustup}"
target=${CARGO_TARGET_DIR:-target}

# A debug build: assertions of our own invariants are part of the test. All packages at once: for
# other sets, cargo would compile everything again, with other features of the dependencies.
step "Compiling the tests"
as_builder cargo test --quiet --locked --workspace --no-run

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
	scripts/book.sh || failed+=("book")
	step "Examples in the documentation of crates"
	as_builder cargo test --quiet --locked --workspace --doc || failed+=("documentation tests")
	step "The C library of versionfs"
	make -s -C lib/versionfs test BUILD="$(realpath -m "$target")/versionfs" || failed+=("libversionfs")
	# The same program on an older kernel, in qemu.
	step "On Debian's 6.1 kernel, without passthrough and io_uring"
	scripts/test-old-kernel.sh "$target/debug/strata" "$tools/fsx" || failed+=("Debian 6.1")
	step "A union as the root file system"
	scripts/test-boot.sh "$target/debug/strata" || failed+=("boot")
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
