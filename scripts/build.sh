#!/usr/bin/env bash
# Builds the program in target/release and links it under the name of every helper of
# mount(8) and umount(8).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

have_rust || die "no Rust $(wanted_rust) or newer: run \`make deps\`"
as_builder "${CARGO:-cargo}" build --release --locked -p cli "$@"
target=${CARGO_TARGET_DIR:-target}/release
as_builder ln -sfn strata "$target/umount.fuse"
"$target/strata" layers --names | while read -r type; do
	as_builder ln -sfn strata "$target/mount.$type"
	as_builder ln -sfn strata "$target/mount.fuse.$type"
	as_builder ln -sfn strata "$target/umount.fuse.$type"
done
