#!/usr/bin/env bash
# Installs the tools that the mounted tests need. Does nothing if they are installed.
#
#   test-tools.sh packages    Debian packages (root)
#   test-tools.sh crates      third-party suites from crates.io, into cache/tools/bin
#                             (or $STRATA_TOOLS/bin)
#   test-tools.sh             both
set -euo pipefail
cd "$(dirname "$0")/.."

tools=${STRATA_TOOLS:-$PWD/cache/tools}
pjdfstest_version=0.2.2
fsx_version=0.3.2

# crate NAME VERSION: installs a crate unless that version is installed.
crate() {
	local stamp=$tools/.$1-$2
	[[ -e $stamp && -x $tools/bin/$1 ]] && return 0
	echo "installing $1 $2 from crates.io"
	cargo install --quiet --locked --root "$tools" --target-dir "$tools/build" --version "$2" "$1"
	touch "$stamp"
}

crates() {
	mkdir -p "$tools"
	crate pjdfstest "$pjdfstest_version"
	crate fsx "$fsx_version"
	rm -rf "$tools/build"
}

wanted=()
# need PROGRAM PACKAGE: adds the package to the list if the program is missing.
need() { compgen -c -X "!$1" >/dev/null || wanted+=("$2"); }

packages() {
	need losetup mount
	need mkfs.ext4 e2fsprogs
	need setfacl acl
	need setfattr attr
	need setcap libcap2-bin
	need rsync rsync
	need sqlite3 sqlite3
	need git git
	need gcc gcc
	need runuser util-linux
	need fuser psmisc
	need ssh-keygen openssh-client
	need sshd openssh-server
	need sshfs sshfs
	need gocryptfs gocryptfs
	if ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then
		wanted+=(postgresql)
		# The tests create their own cluster: keep Debian from creating and starting one.
		mkdir -p /etc/postgresql-common
		[[ -e /etc/postgresql-common/createcluster.conf ]] ||
			echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
	fi
	((${#wanted[@]} == 0)) && return 0
	echo "installing packages for the tests: ${wanted[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get -qq update
	apt-get -qq install -y --no-install-recommends "${wanted[@]}" >/dev/null
}

case ${1:-both} in
packages) packages ;;
crates) crates ;;
both) packages && crates ;;
*)
	echo "usage: $0 [packages|crates]" >&2
	exit 2
	;;
esac
