#!/bin/sh
# Measures Strata beside the native file system, overlayfs and FUSE peers, and writes the outcome into docs/.
#
#   scripts/bench.sh                 everything: operations, memory, workloads; rewrites docs/benchmarks.{md,svg,json}
#   scripts/bench.sh --quick ...     a smoke test: prints, writes nothing into docs/
#   scripts/bench.sh OPTIONS ...     strata-bench's own options (see --help), with what it needs fetched: prints only
#
# Needs root and Debian. The peers come from Debian's archive and are unpacked into a cache directory, not installed:
# unionfs-fuse has a /sbin/mount.unionfs of its own, which must not take the place of ours.
# CACHE (default: cache/bench) says where; BUILD=no leaves out the build, STRATA=PATH names another program.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
cache=${CACHE:-$top/cache/bench}
target=${CARGO_TARGET_DIR:-$top/target}
peers="mergerfs fuse-overlayfs unionfs-fuse postmark"
libraries="libfuse2 libfuse3-3"

say() { echo "bench.sh: $*" >&2; }

if [ "$(id -u)" != 0 ]; then
	say "it mounts file systems: run it as root"
	exit 1
fi

# Refreshes apt's lists before the first package is asked for; a machine may never have had any.
updated=no
update() {
	[ $updated = yes ] || apt-get update -q >&2 || say "apt-get update failed: going on with the lists there are"
	updated=yes
}

# Installs the packages of which the named programs or files are missing: pairs of file and package.
need() {
	missing=
	while [ $# -gt 1 ]; do
		[ -e "$1" ] || missing="$missing $2"
		shift 2
	done
	[ -z "$missing" ] && return
	say "installing$missing"
	update
	# shellcheck disable=SC2086 # a list of packages
	apt-get install -y -q --no-install-recommends $missing >&2
}

# Unpacks the peers and their libraries below $cache/peers. One that the archive does not have is left out.
fetch_peers() {
	[ -e "$cache/peers/versions" ] && return
	say "fetching the peers from Debian's archive"
	update
	rm -rf "$cache/debs" "$cache/peers"
	mkdir -p "$cache/debs" "$cache/peers"
	for package in $peers $libraries; do
		(cd "$cache/debs" && apt-get download -q -o APT::Sandbox::User=root "$package" >&2) || say "no $package: left out"
	done
	for deb in "$cache"/debs/*.deb; do
		[ -e "$deb" ] || continue
		dpkg -x "$deb" "$cache/peers"
		dpkg-deb -W --showformat='${Package} ${Version}\n' "$deb"
	done >"$cache/versions.new"
	mv "$cache/versions.new" "$cache/peers/versions"
	rm -rf "$cache/debs"
}

# Unpacks Debian's source package of OpenSSH into $cache/openssh, with lists of apt's own kept apart from the system's.
fetch_openssh() {
	need /usr/bin/cc gcc /usr/bin/make make /usr/include/zlib.h zlib1g-dev /usr/include/openssl/ssl.h libssl-dev
	[ -e "$cache/openssh/configure" ] && return
	say "fetching the source of OpenSSH"
	need /usr/bin/dpkg-source dpkg-dev /usr/bin/autoreconf autoconf /usr/bin/automake automake
	apt=$cache/apt
	rm -rf "$apt"
	mkdir -p "$apt/lists/partial" "$apt/source"
	release=$(. /etc/os-release && echo "$VERSION_CODENAME")
	echo "deb-src http://deb.debian.org/debian $release main" >"$apt/sources.list"
	(
		cd "$apt/source"
		set -- -q -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=- \
			-o "Dir::State::Lists=$apt/lists" -o APT::Sandbox::User=root
		apt-get "$@" update >&2
		apt-get "$@" source openssh >&2
	)
	# Debian's patches change what configure is made from.
	(cd "$apt"/source/openssh-*/ && autoreconf -f -i >&2)
	rm -rf "$cache/openssh"
	mv "$apt"/source/openssh-*/ "$cache/openssh"
	rm -rf "$apt"
}

# Puts the file $2 between the markers of $1.
splice() {
	awk -v part="$2" '
		/^<!-- measured: begin -->$/ { print; print ""; while ((getline line < part) > 0) print line; skip = 1 }
		/^<!-- measured: end -->$/ { skip = 0 }
		!skip' "$1" >"$1.new"
	mv "$1.new" "$1"
}

mkdir -p "$cache"
need /usr/sbin/mkfs.ext4 e2fsprogs
fetch_peers
case " $* " in
*openssh*) fetch_openssh ;;
esac
[ $# -gt 0 ] || fetch_openssh

cd "$top"
if [ "${BUILD:-yes}" != no ]; then
	cargo build --release -q -p strata-bench -p cli
fi
strata=${STRATA:-$target/release/strata}
set -- --cache "$cache" --unionfs "$strata" --wrapfs "$strata" "$@"
if [ $# -gt 6 ]; then
	exec "$target/release/strata-bench" "$@"
fi
part=$(mktemp)
trap 'rm -f "$part"' EXIT
"$target/release/strata-bench" "$@" --memory --workload openssh,postmark \
	--markdown "$part" --json docs/benchmarks.json --svg docs/benchmarks.svg
splice docs/benchmarks.md "$part"
say "docs/benchmarks.md, .svg and .json are written"
