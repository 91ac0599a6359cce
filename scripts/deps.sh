#!/usr/bin/env bash
# Installs what a part of the work needs and the machine lacks, from Debian only: deps.sh build|run|test|bench|lint ...
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

build=(gcc libc6-dev)
run=(debootstrap squashfs-tools util-linux mount ca-certificates)
test=(fuse3 e2fsprogs util-linux mount attr acl git rsync python3 sqlite3)
bench=(fuse3 e2fsprogs util-linux mount)
lint=(shellcheck codespell python3)

wanted=()
for group in "$@"; do
	case $group in
	build) wanted+=("${build[@]}") ;;
	run) wanted+=("${run[@]}") ;;
	test) wanted+=("${test[@]}") ;;
	bench) wanted+=("${bench[@]}") ;;
	lint) wanted+=("${lint[@]}") ;;
	*) die "deps.sh: $group: none of build, run, test, bench, lint" ;;
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
	die "this is no Debian: install by hand: ${missing[*]} and Rust $(wanted_rust) or newer"
fi
((EUID == 0)) || die "to be installed: ${missing[*]}${missing[*]:+ }$([[ $need_rust == yes ]] && echo "Rust $(wanted_rust)"); run: sudo make deps"

export DEBIAN_FRONTEND=noninteractive
step "Installing what is missing"
apt-get -qq update
if [[ $need_rust == yes ]]; then
	# Debian's own Rust where it is new enough, else the one that Debian keeps new for its browsers.
	if new_enough "$(candidate cargo)"; then
		missing+=(rustc cargo)
	elif new_enough "$(candidate cargo-web)"; then
		missing+=(rustc-web cargo-web)
	else
		die "no Rust $(wanted_rust) or newer among this Debian's packages (Debian 12 has it as cargo-web in bookworm-security: is
       that in /etc/apt/sources.list?); or install it from https://rustup.rs, then go on"
	fi
fi
note "${missing[*]}"
apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
