#!/usr/bin/env bash
# Installs missing dependencies from Debian: deps.sh build|run|test|bench|lint ...
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

build=(gcc libc6-dev make)
run=(debootstrap squashfs-tools util-linux mount ca-certificates)
test=(fuse3 e2fsprogs xfsprogs btrfs-progs util-linux mount attr acl libcap2-bin git make perl rsync)
test+=(python3 sqlite3 gcc iproute2 psmisc vim ed)
# Replicas of lbfs, and a database that the tests crash.
test+=(openssh-client openssh-server sshfs postgresql)
# Debian's kernel in qemu.
test+=(qemu-system-x86 busybox-static cpio squashfs-tools procps)
# Opens what cryptctl makes, and the other way round.
test+=(gocryptfs)
test+=(nfs-ganesha nfs-ganesha-vfs rpcbind libnfs-utils libnfs-dev)
# The C library of versionfs.
test+=(libfuse3-dev pkg-config)
bench=(fuse3 e2fsprogs xfsprogs util-linux mount)
lint=(shellcheck codespell python3)

wanted=()
for group in "$@"; do
	case $group in
	build) wanted+=("${build[@]}") ;;
	run) wanted+=("${run[@]}") ;;
	test) wanted+=("${test[@]}") ;;
	bench) wanted+=("${bench[@]}") ;;
	lint) wanted+=("${lint[@]}") ;;
	*) die "deps.sh: $group: unknown group: expected build, run, test, bench or lint" ;;
	esac
done

is_installed() { [[ $(dpkg-query -Wf '${db:Status-Abbrev}' "$1" 2>/dev/null) == ii* ]]; }

missing=()
for package in "${wanted[@]}"; do
	is_installed "$package" || missing+=("$package")
done

candidate() { apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/ {print $2}' | sed 's/^[0-9]*://; s/[+~-].*//'; }
new_enough() { [[ -n $1 && $1 != '(none)' && $(printf '%s\n%s\n' "$(wanted_rust)" "$1" | sort -V | head -n 1) == "$(wanted_rust)" ]]; }

need_rust=no
if [[ " $* " == *" build "* ]] && ! have_rust; then
	need_rust=yes
fi

if ((${#missing[@]} == 0)) && [[ $need_rust == no ]]; then
	exit 0
fi
if ! command -v apt-get >/dev/null; then
	die "apt-get is missing, so this is not Debian: install ${missing[*]} and Rust $(wanted_rust) or newer by hand"
fi
((EUID == 0)) || die "missing: ${missing[*]}${missing[*]:+ }$([[ $need_rust == yes ]] && echo "Rust $(wanted_rust)"): run sudo make deps"

export DEBIAN_FRONTEND=noninteractive
step "Installing missing packages"
apt-get -qq update
if [[ $need_rust == yes ]]; then
	# Debian's own Rust if it is new enough, otherwise the newer one that Debian packages for
	# browsers.
	if new_enough "$(candidate cargo)"; then
		missing+=(rustc cargo)
	elif new_enough "$(candidate cargo-web)"; then
		missing+=(rustc-web cargo-web)
	else
		die "no Rust $(wanted_rust) or newer in this Debian's archive: add bookworm-security (cargo-web on Debian 12) to
       /etc/apt/sources.list, or install Rust from https://rustup.rs; then try again"
	fi
fi
note "${missing[*]}"
# The tests run servers of their own, in namespaces. Those of the packages must not start, now or at
# the next boot, unless they were installed before.
daemons=()
for package in "${missing[@]}"; do
	case $package in
	nfs-ganesha) daemons+=(nfs-ganesha.service nfs-ganesha-lock.service) ;;
	rpcbind) daemons+=(rpcbind.service rpcbind.socket) ;;
	openssh-server) daemons+=(ssh.service ssh.socket) ;;
	postgresql)
		daemons+=(postgresql.service)
		# No cluster either.
		mkdir -p /etc/postgresql-common
		[[ -e /etc/postgresql-common/createcluster.conf ]] ||
			echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
		;;
	esac
done
policy=/usr/sbin/policy-rc.d
if ((${#daemons[@]})) && [[ ! -e $policy ]]; then
	trap 'rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
if ((${#daemons[@]})) && command -v systemctl >/dev/null; then
	for daemon in "${daemons[@]}"; do
		systemctl -q disable "$daemon" 2>/dev/null || note "$daemon could not be disabled"
	done
fi
