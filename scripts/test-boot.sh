#!/bin/sh
# Boots a system whose root file system is a union, as docs/boot.md describes: Debian 12's kernel in
# qemu, an initramfs with boot/strata-root, a read-only squashfs as root file system, two modules
# from the parameter strata.branches, and one that is added later.
#
#   scripts/test-boot.sh STRATA_BINARY
set -eu
here=$(dirname "$0")
strata=$(realpath "$1")
# shellcheck source=scripts/old-kernel.sh
. "$here/old-kernel.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
initramfs=$work/initramfs
system=$work/system

# The system: busybox, Strata, and modules.
mkdir -p "$system/bin" "$system/sbin" "$system/etc" "$system/modules" "$system/proc" "$system/sys" "$system/dev" "$system/run" "$system/tmp" "$system/lib64"
cp /bin/busybox "$system/bin/"
cp "$here/boot-checks.sh" "$system/checks.sh"
copy_program "$system" "$strata" /sbin/strata
ln -s strata "$system/sbin/unionctl"
cp "$here/../boot/strata-module" "$system/sbin/"
echo 'as shipped' >"$system/etc/motd"
echo 'base' >"$system/etc/version"
for module in 10-desktop 20-editor 30-later; do
    mkdir -p "$work/$module/etc" "$work/$module/opt"
    echo "$module" >"$work/$module/etc/version"
    echo "$module" >"$work/$module/opt/$module"
    mksquashfs "$work/$module" "$system/modules/$module.squashfs" -quiet -no-progress >/dev/null
done
mv "$system/modules/30-later.squashfs" "$system/"
cat >"$system/sbin/init" <<'EOS'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/sbin
. /checks.sh
echo "system: started"
server() { for p in /proc/[0-9]*; do case $(tr '\0' ' ' <$p/cmdline) in @mount.unionfs*) echo "${p#/proc/}";; esac; done; }
check 'the root file system is a union' grep -q ' / fuse.unionfs ' /proc/mounts
check 'systemd lets the server run' [ -n "$(server)" ]
check 'a file of the system' is "$(cat /etc/motd)" 'as shipped'
check 'later modules take precedence' is "$(cat /etc/version)" 20-editor
check 'both modules are there' is "$(cd /opt && echo *)" '10-desktop 20-editor'
check 'branches' is "$(unionctl / --list | grep -c /run/initramfs/strata/branches)" 4
check 'a change' sh -c 'echo changed >/etc/motd'
check 'the change is visible' is "$(cat /etc/motd)" changed
check 'it lies on the tmpfs' is "$(cat /run/initramfs/strata/branches/tmpfs/etc/motd)" changed
check 'the system is unchanged' is "$(cat /run/initramfs/strata/branches/root/etc/motd)" 'as shipped'
check 'remove' rm /opt/10-desktop
check 'removed' [ ! -e /opt/10-desktop ]
# This kernel uses the names that it has cached until they expire.
later() { sleep 1.2; }
check 'add a module' strata-module add /30-later.squashfs
later
check 'the module takes precedence' is "$(cat /etc/version)" 30-later
check 'remove the module' strata-module remove /30-later.squashfs
later
check 'the module is gone' is "$(cat /etc/version)" 20-editor
check 'no mount is left' sh -c '! grep -q 30-later /proc/mounts'
check 'add a directory' sh -c 'mkdir /tmp/plain && echo x >/tmp/plain/new && mount -t tmpfs none /mnt && cp -a /tmp/plain /mnt/ && strata-module add /mnt/plain'
check 'its file' is "$(cat /new)" x
check 'its server' is "$(strata info / | awk '$1 == "pid" { print $2 }')" "$(server)"
echo "boot: $passed passed, $failed failed"
poweroff -f
EOS
chmod +x "$system/sbin/init"
mkdir -p "$system/mnt"

# The initramfs.
mkdir -p "$initramfs/bin" "$initramfs/sbin" "$initramfs/proc" "$initramfs/sys" "$initramfs/dev" "$initramfs/run" "$initramfs/root" "$initramfs/etc/strata" "$initramfs/lib64"
cp /bin/busybox "$initramfs/bin/"
for module in $modules; do if [ -e "$cache/$module.ko" ]; then cp "$cache/$module.ko" "$initramfs/"; fi; done
copy_program "$initramfs" "$strata" /sbin/mount.unionfs
ldd "$strata" | grep -o '/[^ ]*' >"$initramfs/etc/strata/libraries"
cp "$here/../boot/strata-root" "$initramfs/sbin/"
mksquashfs "$system" "$initramfs/system.squashfs" -quiet -no-progress -comp gzip >/dev/null
cat >"$initramfs/init" <<'EOS'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/sbin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs -o noexec,nodev,nosuid,mode=755 none /run
# Dependencies first; a module that is part of the kernel is no file.
for module in xxhash lz4_decompress lzo_decompress zstd_decompress fuse loop squashfs; do
    [ ! -e /$module.ko ] || insmod /$module.ko
done
mount -o ro,loop /system.squashfs /root || echo "FAILED: can't mount the root file system"
strata-root /root || { echo "FAILED: strata-root"; poweroff -f; }
for dir in proc sys dev run; do mount --move /$dir /root/$dir; done
exec switch_root /root /sbin/init
EOS
chmod +x "$initramfs/init"
(cd "$initramfs" && find . | cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initramfs.gz"
boot "$work/initramfs.gz" 'strata.branches=tmpfs:/modules/*.squashfs strata.tmpfs=64m strata.options=cache=1' >"$cache/boot.log"
sed -n '/FAILED\|strata-root\|system: started\|passed,/,$p' "$cache/boot.log" | tr -d '\r' | grep -v 'Power down' || true
grep -q 'boot: [0-9]* passed, 0 failed' "$cache/boot.log"
