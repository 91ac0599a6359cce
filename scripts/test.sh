#!/usr/bin/env bash
# Every test. Those that mount are in the crate strata-tests and in crates/cli; they need root and make their own mount
# namespaces, so the machine is as before afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

need_root test
scripts/deps.sh build test
modprobe -q fuse 2>/dev/null || true
[[ -e /dev/fuse ]] || die "/dev/fuse is missing: load the module (modprobe fuse), or give the container --device /dev/fuse"

# Tests of the ring need it; whatever the machine had is put back.
uring=/sys/module/fuse/parameters/enable_uring
if [[ -w $uring && $(<"$uring") == N ]]; then
	note "FUSE over io_uring is switched off on this machine: on for the tests ($uring), and back afterwards."
	echo Y >"$uring"
	trap 'echo N >"$uring"' EXIT
fi

step "The suites of others"
scripts/test-tools.sh

# Not optimised: the assertions of our own invariants are part of the test.
step "Building what the tests mount"
as_builder cargo build --locked -p cli
step "Tests"
as_builder cargo test --locked --workspace --exclude strata-tests --exclude cli "$@"
# These mount, as root.
PATH="$builder_home/.cargo/bin:$PATH" HOME="$builder_home" cargo test --locked -p cli -p strata-tests "$@"
# The same program on an older kernel, in qemu.
step "On Debian's 6.1 kernel, without passthrough and io_uring"
scripts/test-old-kernel.sh "${CARGO_TARGET_DIR:-target}/debug/strata" "${STRATA_TOOLS:-cache/tools}/bin/fsx"
if [[ $builder != root ]]; then
	chown -R "$builder:" "${CARGO_TARGET_DIR:-target}"
fi
