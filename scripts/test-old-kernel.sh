#!/bin/sh
# Boots Debian 12's kernel (6.1: FUSE protocol 7.38, no passthrough, no io_uring) in qemu, mounts a
# union and the null layer and exercises them. Needs no KVM: software emulation boots within
# seconds.
#
#   scripts/test-old-kernel.sh STRATA_BINARY [FSX_BINARY]
set -eu
strata=$(realpath "$1")
fsx=${2:+$(realpath "$2")}
# shellcheck source=scripts/old-kernel.sh
. "$(dirname "$0")/old-kernel.sh"

root=$(mktemp -d)
trap 'rm -rf "$root" "$root.gz"' EXIT
mkdir -p "$root/bin" "$root/sbin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/lib64"
cp /bin/busybox "$root/bin/"
cp "$(dirname "$0")/boot-checks.sh" "$root/checks.sh"
cp "$cache/fuse.ko" "$root/"
copy_program "$root" "$strata" /sbin/strata
ln -s strata "$root/sbin/mount.unionfs"
ln -s strata "$root/sbin/mount.wrapfs"
[ -z "$fsx" ] || copy_program "$root" "$fsx" /bin/fsx
cat >"$root/init" <<'EOF'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/sbin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm
mount -t tmpfs none /tmp
insmod /fuse.ko
. /checks.sh
uname -r
mkdir -p /tmp/rw /tmp/ro/dir/sub /tmp/u /tmp/w
echo original >/tmp/ro/file
echo two >/tmp/ro/dir/two
ln /tmp/ro/dir/two /tmp/ro/dir/zwei
ln -s file /tmp/ro/symlink
dd if=/dev/urandom of=/tmp/ro/big bs=64k count=64 2>/dev/null
check 'mount the union' mount.unionfs none /tmp/u -o dirs=/tmp/rw=rw:/tmp/ro=ro
check 'mount the null layer' mount.wrapfs /tmp/ro/dir /tmp/w
check 'it is mounted' grep -q 'fuse.unionfs' /proc/mounts
check 'read' is "$(cat /tmp/u/file)" original
check 'symbolic link' is "$(cat /tmp/u/symlink)" original
check 'big file' cmp /tmp/u/big /tmp/ro/big
echo more >>/tmp/u/file
check 'append copies up' is "$(cat /tmp/u/file | tr '\n' ' ')" 'original more '
check 'original untouched' is "$(cat /tmp/ro/file)" original
check 'hard link before' is "$(cat /tmp/u/dir/zwei)" two
echo drei >>/tmp/u/dir/two
check 'hard link after' is "$(cat /tmp/u/dir/zwei | tr '\n' ' ')" 'two drei '
check 'rename a directory' mv /tmp/u/dir /tmp/u/renamed
check 'entries of the renamed directory' is "$(cd /tmp/u/renamed && echo *)" 'sub two zwei'
check 'remove' rm /tmp/u/big
check 'removed' [ ! -e /tmp/u/big ]
check 'original still exists' [ -e /tmp/ro/big ]
check 'write 20 MiB' dd if=/dev/zero of=/tmp/u/new bs=1M count=20
check 'size' is "$(stat -c %s /tmp/u/new)" 20971520
mkdir /tmp/u/many
i=0; while [ $i -lt 500 ]; do echo $i >/tmp/u/many/$i; i=$((i + 1)); done
check 'many files' is "$(ls /tmp/u/many | wc -l)" 500
check 'find' is "$(find /tmp/u -type f | wc -l)" 504
check 'null layer' is "$(ls /tmp/w | tr '\n' ' ')" 'sub two zwei '
[ ! -x /bin/fsx ] || check 'fsx on the union' fsx -N 2000 -S 7 /tmp/u/fsx
[ ! -x /bin/fsx ] || check 'fsx on the null layer' fsx -N 2000 -S 7 /tmp/w/fsx
check 'the transport is /dev/fuse' sh -c "strata info /tmp/u | grep -q device"
check 'unmount' umount /tmp/u
check 'mount again' mount.unionfs none /tmp/u -o dirs=/tmp/rw=rw:/tmp/ro=ro
check 'changes survive a remount' is "$(cat /tmp/u/renamed/zwei | tr '\n' ' ')" 'two drei '
check 'unmount again' umount /tmp/u
check 'unmount the null layer' umount /tmp/w
echo "old-kernel: $passed passed, $failed failed"
poweroff -f
EOF
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc 2>/dev/null | gzip -1) >"$root.gz"
boot "$root.gz" >"$cache/console.log"
sed -n '/^6\.1\|FAILED\|passed,/,$p' "$cache/console.log" | tr -d '\r' | grep -v 'Power down' || true
grep -q 'old-kernel: [0-9]* passed, 0 failed' "$cache/console.log"
