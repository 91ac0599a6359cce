#!/usr/bin/env bash
# Checks which crate depends on which: the layering in ARCHITECTURE.md. Fails if a crate is not
# listed here, if it depends on a crate that its line does not name, or if a layer lacks the clippy
# settings that forbid host I/O.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

# CRATE: allowed dependencies, except those of its tests. "*" allows all.
allowed='
vnode:
fuse:
stack: vnode
hostfs: vnode
memfs: vnode
meter: vnode
access: vnode
container: vnode
blockcodecs: vnode container
wrapfs: vnode stack container
layers: vnode stack wrapfs blockcodecs
snoopfs: vnode stack wrapfs access
usenetfs: vnode stack
unionfs: vnode stack
lbfs: vnode stack
plugin: vnode stack wrapfs
conformance: vnode memfs
server: vnode fuse
cli: *
'
# Crates that see only the vnode interface.
layers='vnode memfs meter container blockcodecs wrapfs layers snoopfs usenetfs unionfs lbfs conformance'

ours=" $(find crates -mindepth 1 -maxdepth 1 -type d -printf '%f ')"
wrong=0
complain() {
	warn "$*"
	wrong=1
}

# Prints the names in [dependencies] of a Cargo.toml.
uses() {
	awk '/^\[/ { inside = $0 == "[dependencies]"; next } inside && match($0, /^[A-Za-z0-9_-]+/) { print substr($0, 1, RLENGTH) }' "$1"
}

for dir in crates/*/; do
	crate=$(basename "$dir")
	may=$(awk -F: -v crate="$crate" '$1 == crate { print $2 " ."; exit }' <<<"$allowed")
	[[ -n $may ]] || { complain "$crate: has no allowed dependencies: add a line for it to scripts/layering.sh"; continue; }
	[[ $may == *'*'* ]] && continue
	for used in $(uses "$dir/Cargo.toml"); do
		[[ $ours == *" $used "* ]] || continue
		[[ " $may " == *" $used "* ]] || complain "$crate: depends on $used, which is not below it"
	done
done
for crate in $layers; do
	[[ $(readlink "crates/$crate/clippy.toml") == ../../scripts/clippy-of-layers.toml ]] ||
		complain "$crate: crates/$crate/clippy.toml must be a symbolic link to ../../scripts/clippy-of-layers.toml"
done
((wrong == 0)) || die "a crate breaks the layering: see ARCHITECTURE.md"
