#!/bin/sh
# A pre-pivot hook of dracut, which sources it: makes the union of strata.branches= the root file
# system.
if getarg strata.branches= >/dev/null; then
	modprobe -q fuse
	modprobe -q loop
	sh /usr/lib/strata/strata-root "${NEWROOT:-/sysroot}" || die "The union could not be mounted as the root file system."
fi
