#!/usr/bin/env bash
# Runs every test. The mounted tests (strata-tests and crates/cli) need root. They run in private
# mount namespaces and leave no mounts behind.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

need_root test
scripts/deps.sh build test
modprobe -q fuse 2>/dev/null || true
[[ -e /dev/fuse ]] || die "/dev/fuse is missing: load the module (modprobe fuse), or give the container --device /dev/fuse"

# The tests of the ring transport need this parameter; its previous value is restored.
uring=/sys/module/fuse/parameters/enable_uring
if [[ -w $uring && $(<"$uring") == N ]]; then
	note "FUSE over io_uring is disabled on this machine: enabled for the tests ($uring), then disabled again."
	echo Y >"$uring"
	trap 'echo N >"$uring"' EXIT
fi

step "Third-party test suites"
scripts/test-tools.sh

scripts/book.sh

# A debug build: assertions of our own invariants are part of the test. One run names every failure:
# nothing below stops at the first.
failed=()
step "Tests"
if [[ $builder == root ]]; then
	# All at once: for other sets of packages, cargo would compile everything again, with other
	# features of the dependencies.
	scripts/retry-tests.sh --workspace "$@" || failed+=("tests")
else
	as_builder cargo build --locked -p cli
	as_builder scripts/retry-tests.sh --workspace --exclude strata-tests --exclude cli "$@" || failed+=("unit tests")
	# The mounted tests, as root.
	PATH="$builder_home/.cargo/bin:$PATH" HOME="$builder_home" \
		scripts/retry-tests.sh -p cli -p strata-tests "$@" || failed+=("mounted tests")
fi
step "The C library of versionfs"
make -s -C lib/versionfs test BUILD="$(realpath -m "${CARGO_TARGET_DIR:-target}")/versionfs" || failed+=("libversionfs")
# The same program on an older kernel, in qemu.
step "On Debian's 6.1 kernel, without passthrough and io_uring"
scripts/test-old-kernel.sh "${CARGO_TARGET_DIR:-target}/debug/strata" "${STRATA_TOOLS:-cache/tools}/bin/fsx" ||
	failed+=("Debian 6.1")
step "A union as the root file system"
scripts/test-boot.sh "${CARGO_TARGET_DIR:-target}/debug/strata" || failed+=("boot")
if [[ $builder != root ]]; then
	chown -R "$builder:" "${CARGO_TARGET_DIR:-target}"
fi
if ((${#failed[@]})); then
	printf 'failed: %s\n' "${failed[@]}" >&2
	exit 1
fi
