#!/usr/bin/env bash
# Checks which crate depends on which: the layering in ARCHITECTURE.md. Fails if a crate is not
# listed here, if it depends on a crate that its line does not name, or if a layer escapes the
# clippy settings that forbid host I/O.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

# CRATE: allowed dependencies, except those of its tests. "*" allows all.
allowed='
vnode:
fuse:
testkit:
stack: vnode
hostfs: vnode
memfs: vnode
meter: vnode
access: vnode
classify: vnode
container: vnode
blockcodecs: vnode container
blockstore: vnode
wrapfs: vnode stack container
layers: vnode stack wrapfs blockcodecs
snoopfs: vnode stack wrapfs access
usenetfs: vnode stack
unionfs: vnode stack isolate
isolate: vnode
lbfs: vnode stack isolate
viewfs: vnode stack access classify
changes: vnode unionfs
plugin: vnode stack wrapfs
versionset: vnode blockstore
versionfs: vnode access stack versionset versionpolicy blockstore
conformance: vnode memfs testkit
server: vnode fuse access
versionpolicy:
cryptsys:
cryptformat: cryptsys
cryptfs: vnode wrapfs cryptformat
versionclient: fuse
cli: *
'
# Crates that may use the host's files. All others see only the vnode interface: crates/clippy.toml.
host='access classify cli fuse hostfs plugin server stack testkit versionclient'

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
for crate in $ours; do
	if [[ " $host " == *" $crate "* ]]; then
		[[ -e crates/$crate/clippy.toml ]] || complain "$crate: has no clippy.toml of its own, so crates/clippy.toml applies"
	elif [[ -e crates/$crate/clippy.toml ]]; then
		complain "$crate: crates/$crate/clippy.toml hides crates/clippy.toml, which forbids host I/O"
	fi
done
((wrong == 0)) || die "a crate breaks the layering: see ARCHITECTURE.md"
