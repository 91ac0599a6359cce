#!/usr/bin/env bash
# Installs or removes the scripts for a union as root file system: install-boot.sh
# install|uninstall, with DESTDIR from the environment. docs/boot.md describes them.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
DESTDIR=${DESTDIR:-}

# Source, target and mode of each file. The directories are those where initramfs-tools, dracut and
# systemd look.
files() {
	cat <<'END'
strata-root /usr/lib/strata/strata-root 755
strata-module /usr/lib/strata/strata-module 755
strata-module@.service /usr/lib/systemd/system/strata-module@.service 644
initramfs-tools/hooks/strata /usr/share/initramfs-tools/hooks/strata 755
initramfs-tools/scripts/init-bottom/strata /usr/share/initramfs-tools/scripts/init-bottom/strata 755
dracut/90strata/module-setup.sh /usr/lib/dracut/modules.d/90strata/module-setup.sh 755
dracut/90strata/mount-union.sh /usr/lib/dracut/modules.d/90strata/mount-union.sh 755
END
}

case ${1:-} in
install)
	files | while read -r source target mode; do
		install -D -m "$mode" "boot/$source" "$DESTDIR$target"
	done
	note "Installed. Now build an initramfs: update-initramfs -u, or dracut --force --add strata"
	;;
uninstall)
	files | while read -r _ target _; do
		rm -f "$DESTDIR$target"
		# Directories that other packages use remain.
		rmdir --ignore-fail-on-non-empty -p "$(dirname "$DESTDIR$target")" 2>/dev/null || true
	done
	;;
*) die "install-boot.sh: install or uninstall" ;;
esac
