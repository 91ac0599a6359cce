#!/usr/bin/env bash
# Runs the commands of a page as root of a scratch system: sandbox.sh SOURCE WORK LAYERS
#
# Runs in a mount and PID namespace of its own: mounts, loop devices, servers and files end with it.
# The system is the machine's own below an overlay, so that nothing that a command writes reaches
# the machine. WORK becomes /run/docs: the program, the commands (`script`) and their output. LAYERS
# becomes /run/layers, where cargo builds layers.
set -euo pipefail
source=$1 work=$2 layers_built=$3
root=/mnt/root

mount -t tmpfs none /mnt
mkdir "$root"
# layer DIR: shows DIR in the scratch system, with changes in memory.
layers=0
layer() {
	local memory=/mnt/memory$((++layers))
	mkdir -p "$memory"/{upper,work} "$root$1"
	mount -t overlay -o "lowerdir=$1,upperdir=$memory/upper,workdir=$memory/work" none "$root$1"
}
others=$(findmnt -rno TARGET)
layer /
for dir in tmp srv mnt run; do
	mount -t tmpfs -o mode=755 none "$root/$dir"
done
chmod 1777 "$root/tmp"
mount -t proc proc "$root/proc"
# Without the file systems mounted there, and read-only: settings of the machine stay as they are.
mount --bind /sys "$root/sys"
mount -o remount,bind,ro "$root/sys"
mount --rbind /dev "$root/dev"
# Other file systems of the machine, for example /home, or /etc/resolv.conf in a container.
while read -r target; do
	case $target in
	/ | /proc* | /sys* | /dev* | /tmp* | /srv* | /mnt* | /run* | *\\*) continue ;;
	esac
	if [[ -d $target ]]; then
		layer "$target"
	elif [[ -f $target ]]; then
		mount --bind "$target" "$root$target"
	fi
done <<<"$others"
# The source can be below a directory that was hidden above.
layer "$source"
mkdir "$root"/run/{docs,layers}
mount --bind "$work" "$root/run/docs"
mount --bind "$layers_built" "$root/run/layers"

cd "$root"
pivot_root . .
umount -l .
cd /

# As after `make install`, with the program under test.
ln -sf /run/docs/strata /usr/local/bin/strata
ln -sf strata /usr/local/bin/unionctl
ln -sf strata /usr/local/bin/uniondbg
ln -sf strata /usr/local/bin/fsck.unionfs
ln -sf strata /usr/local/bin/fsck.versionfs
ln -sf strata /usr/local/bin/usenetctl
ln -sf strata /usr/local/bin/versionctl
ln -sf strata /usr/local/bin/cryptctl
ln -sf strata /usr/local/bin/snapmerge
for type in $(/run/docs/strata layers --names); do
	ln -sf /usr/local/bin/strata "/sbin/mount.$type"
	ln -sf /usr/local/bin/strata "/sbin/mount.fuse.$type"
done
# sudo may be missing, and the commands run as root already. `cargo build` of Strata copies the
# program under test (scripts/build.sh runs $CARGO). Layers are built in debug mode only, and refer
# to the source directly, not by their link `strata`: so they share all that cargo builds.
mkdir /run/bin
printf '#!/bin/sh\nexec "$@"\n' >/run/bin/sudo
cat >/run/bin/cargo <<'SCRIPT'
#!/bin/sh
case "$*" in
"build -p cli") profile=debug ;;
"build --release --locked -p cli") profile=release ;;
*)
	PATH=${PATH#/run/bin:}
	export CARGO_TARGET_DIR=/run/layers CARGO_PROFILE_DEV_DEBUG=0
	[ -L strata ] || exec cargo "$@"
	sed -i "s|\"strata/crates|\"$(readlink strata)/crates|" Cargo.toml
	[ "$1" = build ] || exec cargo "$@"
	cargo build && mkdir -p target/debug target/release
	for profile in debug release; do cp "/run/layers/debug/lib${PWD##*/}.so" "target/$profile/" || exit; done
	exit
	;;
esac
mkdir -p "target/$profile" && cp --remove-destination /run/docs/strata "target/$profile/"
SCRIPT
chmod 755 /run/bin/*
# Shells that a command starts, for example with `unshare -Urm`, read the commands that follow, and
# fail with them.
cat >/run/strict <<'SCRIPT'
[[ $- == *s* ]] && set -Eeo pipefail && trap 'printf "failed: %s\n" "$BASH_COMMAND" >&2' ERR
:
SCRIPT
# Login shells.
echo '. /run/strict' >/etc/profile.d/strict.sh
export BASH_ENV=/run/strict CARGO=/run/bin/cargo CARGO_NET_OFFLINE=true PATH=/run/bin:$PATH
export LC_ALL=C.UTF-8 SHELL=/bin/bash TERM=dumb
unset CARGO_TARGET_DIR
cd "$source"
# A shell reads a pipe by lines: those after `exit` are for the shell that started it. It
# has a session, as a login does: the one of the tests began outside of this PID namespace.
setsid --wait bash -s < <(cat /run/docs/script)
