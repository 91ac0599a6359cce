#!/bin/sh
# Measures Strata against the native file system, overlayfs and FUSE peers, and writes the results
# to docs/.
#
#   scripts/bench.sh               everything: operations, memory, workloads; rewrites
#                                  docs/benchmarks.{md,svg,json}. Then as with --branches,
#                                  --versions and --encryption
#   scripts/bench.sh --branches    unions of many branches, and snapshots; rewrites the part of
#                                  docs/benchmarks.md about them, docs/many-branches.json and
#                                  docs/many-branches-*.svg
#   scripts/bench.sh --versions    time and space of keeping versions; rewrites the part of
#                                  docs/benchmarks.md about them, docs/versions.json and
#                                  docs/versions-*.svg
#   scripts/bench.sh --encryption  encrypting file systems; rewrites the part of
#                                  docs/benchmarks.md about them, docs/encryption.json and
#                                  docs/encryption-*.svg
#   scripts/bench.sh --quick ...   smoke test: prints the results, leaves docs/ alone
#   scripts/bench.sh --branches --quick ...   the same for --branches
#   scripts/bench.sh --versions --quick ...   the same for --versions
#   scripts/bench.sh --encryption --quick ...   the same for --encryption
#   scripts/bench.sh OPTIONS ...   passes options to strata-bench (see --help) after fetching
#                                  what they need: prints the results, leaves docs/ alone
#
# Needs root and Debian. The peers come from Debian's archive. They are unpacked into a cache
# directory and not installed, because unionfs-fuse brings its own /sbin/mount.unionfs, which would
# replace ours. CACHE sets the cache directory (default: cache/bench). BUILD=no skips the build.
# STRATA=PATH selects another program. The programs that --versions compares the space with are
# installed, as is fusermount, which gocryptfs needs. The releases of a source tree come from the
# registry of their language.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
cache=${CACHE:-$top/cache/bench}
target=${CARGO_TARGET_DIR:-$top/target}
peers="mergerfs fuse-overlayfs unionfs-fuse postmark gocryptfs securefs encfs"
libraries="libfuse2 libfuse3-3 libssl3 libargon2-1 libcrypto++8 libjsoncpp25 libutf8proc2 libtinyxml2-9"

say() { echo "bench.sh: $*" >&2; }

if [ "$(id -u)" != 0 ]; then
	say "needs root to mount file systems: run it as root"
	exit 1
fi

# Refreshes apt's package lists once, before the first package is fetched: the machine may have
# none.
updated=no
update() {
	[ $updated = yes ] || apt-get update -q >&2 || say "apt-get update failed: using the existing package lists"
	updated=yes
}

# Installs missing packages. Arguments are pairs: a file, and the package that provides it.
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

# Unpacks the peers and their libraries below $cache/peers. Skips packages that the archive lacks.
fetch_peers() {
	# A cache of an older version of this script lacks some.
	[ "$(cat "$cache/peers/packages" 2>/dev/null)" = "$peers $libraries" ] && return
	say "fetching the peers from Debian's archive"
	update
	rm -rf "$cache/debs" "$cache/peers"
	mkdir -p "$cache/debs" "$cache/peers"
	for package in $peers $libraries; do
		(cd "$cache/debs" && apt-get download -q -o APT::Sandbox::User=root "$package" >&2) || say "$package: not in the archive: skipped"
	done
	for deb in "$cache"/debs/*.deb; do
		[ -e "$deb" ] || continue
		dpkg -x "$deb" "$cache/peers"
		dpkg-deb -W --showformat='${Package} ${Version}\n' "$deb"
	done >"$cache/versions.new"
	mv "$cache/versions.new" "$cache/peers/versions"
	echo "$peers $libraries" >"$cache/peers/packages"
	rm -rf "$cache/debs"
}

# Unpacks Debian's source package of OpenSSH into $cache/openssh. Uses separate apt lists, so that
# the system's lists stay unchanged.
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
	# Debian's patches change the input of configure.
	(cd "$apt"/source/openssh-*/ && autoreconf -f -i >&2)
	rm -rf "$cache/openssh"
	mv "$apt"/source/openssh-*/ "$cache/openssh"
	rm -rf "$apt"
}

# Fetches the successive releases of the source tree that --versions copies and --encryption
# unpacks, and verifies them.
fetch_releases() {
	list=$top/bench/data/releases.sha256
	mkdir -p "$cache/releases"
	(cd "$cache/releases" && sha256sum --quiet -c "$list" >/dev/null 2>&1) && return
	say "fetching the releases of a source tree"
	need /usr/bin/npm npm
	(
		cd "$cache/releases"
		# shellcheck disable=SC2046 # a list of packages
		npm pack --silent $(sed 's/.*  \(.*\)-\(.*\)\.tgz$/\1@\2/' "$list") >/dev/null
		sha256sum --quiet -c "$list" >&2
	)
}

# splice PAGE FILE [NAME]: replaces the part of PAGE between the markers of that name with FILE.
splice() {
	if ! grep -qxF "<!-- measured: begin${3:+ $3} -->" "$1"; then
		say "$1: it has no marker for the results${3:+ of $3}"
		exit 1
	fi
	awk -v part="$2" -v name="${3:+ $3}" '
		$0 == "<!-- measured: begin" name " -->" { print; print ""; while ((getline line < part) > 0) print line; skip = 1 }
		$0 == "<!-- measured: end" name " -->" { skip = 0 }
		!skip' "$1" >"$1.new"
	mv "$1.new" "$1"
}

# Runs strata-bench with these options.
bench() {
	"$target/release/strata-bench" --cache "$cache" --unionfs "$strata" --wrapfs "$strata" \
		--versionfs "$strata" --cryptfs "$strata" "$@"
}

# Measures operations, memory and workloads, and writes the results to docs/.
measure() {
	bench --memory --workload openssh,postmark \
		--markdown "$part" --json docs/benchmarks.json --svg docs/benchmarks.svg
	splice docs/benchmarks.md "$part"
	say "wrote docs/benchmarks.md, docs/benchmarks.svg and docs/benchmarks.json"
}

# Measures unions of many branches, and snapshots, and writes the results to docs/.
measure_branches() {
	bench --branches --markdown "$part" --json docs/many-branches.json --figures docs
	splice docs/benchmarks.md "$part" branches
	say "wrote docs/benchmarks.md, docs/many-branches.json and docs/many-branches-*.svg"
}

# Measures the time and space of keeping versions, and writes the results to docs/.
measure_versions() {
	bench --versions --markdown "$part" --json docs/versions.json --figures docs
	splice docs/benchmarks.md "$part" versions
	say "wrote docs/benchmarks.md, docs/versions.json and docs/versions-*.svg"
}

# Measures encrypting file systems, and writes the results to docs/.
measure_encryption() {
	bench --encryption --markdown "$part" --json docs/encryption.json --figures docs
	splice docs/benchmarks.md "$part" encryption
	say "wrote docs/benchmarks.md, docs/encryption.json and docs/encryption-*.svg"
}

mkdir -p "$cache"
need /usr/sbin/mkfs.ext4 e2fsprogs
fetch_peers
case " $* " in
"  " | " --branches " | " --versions " | " --encryption " | *openssh* | *" build"* | *,build*) fetch_openssh ;;
esac
case " $* " in
"  " | *" --versions "*)
	need /usr/bin/git git /usr/bin/borg borgbackup /usr/bin/restic restic /usr/bin/rdiff-backup rdiff-backup
	fetch_releases
	;;
esac
case " $* " in
"  " | *" --branches "*) need /usr/sbin/mkfs.xfs xfsprogs ;;
esac
case " $* " in
"  " | *" --encryption "*)
	need /usr/bin/fusermount fuse3
	fetch_releases
	;;
esac

cd "$top"
if [ "${BUILD:-yes}" != no ]; then
	cargo build --release -q -p strata-bench -p cli
fi
strata=${STRATA:-$target/release/strata}
part=$(mktemp)
trap 'rm -f "$part"' EXIT
case $* in
"")
	measure
	measure_branches
	measure_versions
	measure_encryption
	;;
--branches) measure_branches ;;
--versions) measure_versions ;;
--encryption) measure_encryption ;;
*) bench "$@" ;;
esac
