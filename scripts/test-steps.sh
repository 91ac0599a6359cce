# shellcheck shell=bash
# Sourced by test.sh and test-long.sh, after common.sh: what surrounds the tests that cargo-nextest
# runs.

# Installs what the tests need, sets their environment and compiles them. Sets `tools` and `target`.
prepare_tests() {
	scripts/deps.sh build test
	scripts/unstable.py --check
	modprobe -q fuse 2>/dev/null || true
	[[ -e /dev/fuse ]] || die "/dev/fuse is missing: load the module (modprobe fuse), or give the container --device /dev/fuse"
	step "Tools from crates.io"
	tools=$(scripts/tools.sh cargo-nextest mdbook fsx pjdfstest)
	export STRATA_TOOLS=${tools%/bin}
	# The tests run as root, but use the Rust installation of the user who builds.
	# shellcheck disable=SC2154 # common.sh sets it
	export PATH="$tools:$builder_home/.cargo/bin:$PATH"
	export CARGO_HOME="${CARGO_HOME:-$builder_home/.cargo}" RUSTUP_HOME="${RUSTUP_HOME:-$builder_home/.rustup}"
	target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
	# A debug build: assertions of our own invariants are part of the test. All packages at once:
	# for other sets, cargo would compile everything again, with other features of the dependencies.
	step "Compiling the tests"
	as_builder cargo test --quiet --locked --workspace --no-run
}

# What cargo-nextest does not run.
# shellcheck disable=SC2034 # used by the scripts that source this
other_tests=(book documentation library kernel-6.1 boot)

run_other_test() { # NAME
	case $1 in
	book) scripts/book.sh ;;
	documentation)
		step "Examples in the documentation of crates"
		as_builder cargo test --quiet --locked --workspace --doc
		;;
	library)
		step "The C library of versionfs"
		make -s -C lib/versionfs test BUILD="$target/versionfs"
		;;
	kernel-6.1)
		step "On Debian's 6.1 kernel, without passthrough and io_uring"
		scripts/test-old-kernel.sh "$target/debug/strata" "$tools/fsx"
		;;
	boot)
		step "A union as the root file system"
		scripts/test-boot.sh "$target/debug/strata"
		;;
	*) die "test-steps.sh: $1: unknown test" ;;
	esac
}
