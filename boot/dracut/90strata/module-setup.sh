#!/bin/bash
# A dracut module: makes the union of strata.branches= the root file system.

check() {
	# Only if it is asked for: dracut --add strata, or add_dracutmodules+=" strata ".
	return 255
}

depends() {
	echo base
}

installkernel() {
	instmods fuse loop squashfs erofs
}

# shellcheck disable=SC2154 # dracut sets initdir and moddir.
install() {
	local strata
	strata=$(command -v strata || echo /usr/local/bin/strata)
	inst_multiple blkid chroot sed seq tr modprobe basename dirname cat cp mkdir mount sleep chmod
	inst "$strata" /sbin/mount.unionfs
	mkdir -p "$initdir/etc/strata"
	ldd "$strata" | grep -o '/[^ ]*' >"$initdir/etc/strata/libraries"
	inst_script /usr/lib/strata/strata-root /usr/lib/strata/strata-root
	inst_hook pre-pivot 50 "$moddir/mount-union.sh"
}
