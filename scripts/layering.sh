#!/usr/bin/env bash
# Which crate may use which of ours: the floors of the house in ARCHITECTURE.md. A crate that is not listed, or that
# uses one which its line does not name, is an error; so is a layer without the settings that forbid host I/O.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

# CRATE: what it may use, beside tests. "*" may use all.
floors='
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
# They see only the vnode interface.
layers='vnode memfs meter container blockcodecs wrapfs layers snoopfs usenetfs unionfs lbfs conformance'

ours=" $(find crates -mindepth 1 -maxdepth 1 -type d -printf '%f ')"
wrong=0
complain() {
	warn "$*"
	wrong=1
}

# The names in [dependencies] of a Cargo.toml.
uses() {
	awk '/^\[/ { inside = $0 == "[dependencies]"; next } inside && match($0, /^[A-Za-z0-9_-]+/) { print substr($0, 1, RLENGTH) }' "$1"
}

for dir in crates/*/; do
	crate=$(basename "$dir")
	may=$(awk -F: -v crate="$crate" '$1 == crate { print $2 " ."; exit }' <<<"$floors")
	[[ -n $may ]] || { complain "$crate: not on any floor: give it a line in scripts/layering.sh"; continue; }
	[[ $may == *'*'* ]] && continue
	for used in $(uses "$dir/Cargo.toml"); do
		[[ $ours == *" $used "* ]] || continue
		[[ " $may " == *" $used "* ]] || complain "$crate uses $used, which is not below it"
	done
done
for crate in $layers; do
	[[ $(readlink "crates/$crate/clippy.toml") == ../../scripts/clippy-of-layers.toml ]] ||
		complain "$crate: crates/$crate/clippy.toml must be a link to ../../scripts/clippy-of-layers.toml"
done
((wrong == 0)) || die "the layering is broken: see ARCHITECTURE.md, \"The house\""
