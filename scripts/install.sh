#!/usr/bin/env bash
# Installs or removes Strata: install.sh install|uninstall, with PREFIX, SBINDIR, DESTDIR and DIVERT
# from the environment.
#
# Installs one program under PREFIX. The mount helpers are links to it in SBINDIR, where mount(8)
# looks for them. A helper that belongs to another package (Debian's unionfs-fuse has a
# /sbin/mount.unionfs) is never overwritten: with DIVERT=1, dpkg-divert(1) renames it, and uninstall
# restores it. Nothing outside PREFIX and SBINDIR changes, except dpkg's list of diversions. That
# list changes only if SBINDIR is the system's sbin directory and DESTDIR is empty.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
# The output of dpkg-divert(1) and dpkg-query(1) is parsed: it must not be translated.
export LC_ALL=C

PREFIX=${PREFIX:-/usr/local}
SBINDIR=${SBINDIR:-/sbin}
DESTDIR=${DESTDIR:-}
DIVERT=${DIVERT:-0}
program=$PREFIX/bin/strata
built=${CARGO_TARGET_DIR:-target}/release/strata
man=$PREFIX/share/man
# The program and its other names, which are links to it.
commands=(strata unionctl uniondbg usenetctl versionctl cryptctl snapmerge)
# Those of them in SBINDIR: fsck(8) searches /sbin.
checkers=(fsck.unionfs fsck.versionfs)

for dir in "$PREFIX" "$SBINDIR"; do
	# The helpers are links to the program's absolute path.
	[[ $dir == /* ]] || die "$dir: not an absolute path: set PREFIX and SBINDIR to absolute paths"
done

# Succeeds if mount(8) looks for helpers in SBINDIR. /sbin may be a link to /usr/sbin.
in_system_sbin() { [[ -z $DESTDIR && $(realpath -m "$SBINDIR") == "$(realpath -m /sbin)" ]]; }

# Builds the program if it is missing or older than its source. Without a Rust toolchain, an
# existing program is installed as it is: it may have been built on another machine or by another
# user.
build_if_needed() {
	if [[ -x $built ]]; then
		[[ -n $(find Cargo.toml Cargo.lock crates include -newer "$built" -print -quit) ]] || return 0
		if ! have_rust; then
			warn "$built is older than the source, and there is no Rust toolchain to rebuild it: installing it as it is."
			return 0
		fi
	fi
	note "Building Strata (release) ..."
	scripts/build.sh
}

# Root is needed only if the user can't write to the directories.
need_rights() {
	local dir
	for dir in "$DESTDIR$PREFIX" "$DESTDIR$SBINDIR"; do
		until [[ -e $dir ]]; do dir=$(dirname "$dir"); done
		[[ -w $dir ]] || die "$dir: $(id -un) can't write there: run sudo make $1, or choose other directories: make $1 PREFIX=DIR SBINDIR=DIR"
	done
}

# Prints the helper names of the program built here, for each type of file system. mount(8) runs the
# second one at a remount, and umount(8) the third one or, for an absolute path, umount.fuse.
built_helpers() {
	local type
	echo umount.fuse
	"$built" layers --names | while read -r type; do
		printf '%s\n' "mount.$type" "mount.fuse.$type" "umount.fuse.$type"
	done
}

# Prints the names of the installed helpers, of any version.
installed_helpers() {
	local helper
	for helper in "$DESTDIR$SBINDIR"/{,u}mount.*; do
		if is_ours "$helper"; then basename "$helper"; fi
	done
}

# Prints a file's other name on a merged-/usr system: dpkg may know the file under either.
other_name() {
	case $1 in
	/usr/sbin/*) echo "${1#/usr}" ;;
	/sbin/*) echo "/usr$1" ;;
	*) echo "$1" ;;
	esac
}

# Prints the package that owns a file, and the name under which it owns it.
owner() {
	local name
	command -v dpkg-query >/dev/null || return 0
	for name in "$1" "$(other_name "$1")"; do
		dpkg-query -S "$name" 2>/dev/null | grep -v '^\(local \)\?diversion ' | sed -n "s#^\([^:]*\).*: \($name\)\$#\1 \2#p" | head -n 1
	done | head -n 1
}

is_ours() { [[ -L $1 && $(readlink "$1") == "$program" ]]; }
is_diverted() { dpkg-divert --list "$1" 2>/dev/null | grep -q '^local diversion'; }
# Succeeds if this script, in any version, diverted the file. The administrator may have diverted it
# for another purpose.
is_diverted_by_us() { dpkg-divert --list "$1" 2>/dev/null | grep -qF "local diversion of $1 to $1."; }

check_helper() {
	local helper=$SBINDIR/$1 package name
	read -r package name <<<"$(owner "$helper")"
	# A diverted file of a package does not conflict with the helper.
	if [[ -n ${package:-} ]] && ! is_diverted "$name"; then
		[[ $DIVERT == 1 ]] || die "$helper belongs to the package $package: not overwritten.
       Either remove that package (apt-get remove $package),
       or rename its file until \`make uninstall\` restores it (make install DIVERT=1),
       or install the helpers elsewhere and call them by their full names (make install SBINDIR=$PREFIX/sbin)"
	elif [[ -z ${package:-} && ( -e $DESTDIR$helper || -L $DESTDIR$helper ) ]] && ! is_ours "$DESTDIR$helper"; then
		die "$DESTDIR$helper exists and was not created by \`make install\`: move it away first"
	fi
}

# Installs a helper's link. A package's file of the same name is diverted first. In the system's
# sbin directory, mount.unionfs is always diverted, so that a later installation of Debian's
# unionfs-fuse can't replace the link.
install_helper() {
	local helper=$SBINDIR/$1 package='' name=''
	if [[ -z $DESTDIR ]]; then read -r package name <<<"$(owner "$helper")"; fi
	name=${name:-$(realpath -m "$SBINDIR")/$1}
	if [[ -n $package ]] || { [[ $1 == mount.unionfs ]] && in_system_sbin; }; then
		if command -v dpkg-divert >/dev/null && ! is_diverted "$name"; then
			local move=--no-rename
			[[ -z $package ]] || move=--rename
			dpkg-divert --quiet --local "$move" --divert "$name.${package:-unionfs-fuse}" --add "$name"
			note "dpkg keeps the package ${package:-unionfs-fuse}'s helper as $name.${package:-unionfs-fuse}, until \`make uninstall\`."
		fi
	fi
	ln -sfn "$program" "$DESTDIR$helper"
}

uninstall_helper() {
	local helper=$SBINDIR/$1 name
	if is_ours "$DESTDIR$helper"; then
		rm -f "$DESTDIR$helper"
	fi
	[[ -z $DESTDIR ]] && command -v dpkg-divert >/dev/null || return 0
	for name in "$helper" "$(other_name "$helper")"; do
		if is_diverted_by_us "$name"; then
			dpkg-divert --quiet --local --rename --remove "$name"
		fi
	done
}

# Runs a target of the C library's makefile, for the same directories.
library() {
	local dest=$DESTDIR
	[[ -z $dest ]] || dest=$(realpath -m "$dest")
	make -s -C lib/versionfs "$1" BUILD="$2" PREFIX="$PREFIX" DESTDIR="$dest"
}

# Builds libversionfs in a directory of its own: an earlier build may belong to another user. The
# program is of use without it, so a machine without a compiler installs the rest.
install_library() {
	local build
	if ! command -v "${CC:-gcc}" >/dev/null; then
		warn "${CC:-gcc} is missing: libversionfs is not installed. make deps installs the compiler."
		return 0
	fi
	build=$(mktemp -d)
	library install "$build" || { rm -rf "$build"; die "libversionfs could not be built or installed"; }
	rm -rf "$build"
}

do_install() {
	local helper pages helpers name
	build_if_needed
	mapfile -t helpers < <(built_helpers)
	((${#helpers[@]} > 0)) || die "$built: \`strata layers --names\` printed no file system types: rebuild it"
	if [[ -z $DESTDIR ]]; then
		for helper in "${helpers[@]}"; do check_helper "$helper"; done
	fi
	install -d "$DESTDIR$PREFIX/bin" "$DESTDIR$SBINDIR" "$DESTDIR$man/man1" "$DESTDIR$man/man8" \
		"$DESTDIR$PREFIX/share/bash-completion/completions" "$DESTDIR$PREFIX/share/zsh/site-functions" \
		"$DESTDIR$PREFIX/share/fish/vendor_completions.d"
	# Written under a temporary name and renamed: a running server keeps the old program.
	install -m 755 "$built" "$DESTDIR$program.new"
	mv -f "$DESTDIR$program.new" "$DESTDIR$program"
	for helper in "${helpers[@]}"; do install_helper "$helper"; done
	for name in "${commands[@]:1}"; do ln -sfn strata "$DESTDIR$PREFIX/bin/$name"; done
	for name in "${checkers[@]}"; do ln -sfn "$program" "$DESTDIR$SBINDIR/$name"; done
	pages=$(mktemp -d)
	"$built" man "$pages"
	install -m 644 "$pages"/*.1 "$DESTDIR$man/man1/"
	install -m 644 "$pages"/*.8 "$DESTDIR$man/man8/"
	rm -rf "$pages"
	# The header for layers in C.
	install -D -m 644 include/strata_layer.h "$DESTDIR$PREFIX/include/strata_layer.h"
	install_library
	for name in "${commands[@]}" "${checkers[@]}" "${helpers[@]}"; do
		[[ $name != mount.fuse.* && $name != umount.* ]] || continue
		"$built" completions bash "$name" >"$DESTDIR$PREFIX/share/bash-completion/completions/$name"
		"$built" completions zsh "$name" >"$DESTDIR$PREFIX/share/zsh/site-functions/_$name"
		"$built" completions fish "$name" >"$DESTDIR$PREFIX/share/fish/vendor_completions.d/$name.fish"
	done
	note "Installed $DESTDIR$program, and ${helpers[*]} in $DESTDIR$SBINDIR."
	if [[ -n $DESTDIR ]] || in_system_sbin; then
		note "Try: mount -t unionfs -o dirs=CHANGES=rw:BASE=ro none DIR; man mount.unionfs"
		note "Or:  mount -t versionfs DIR MNT; versionctl log FILE; man versionctl"
	else
		note "mount(8) looks for helpers in /sbin only: call a helper by its full name."
		note "Try: $SBINDIR/mount.unionfs none DIR -o dirs=CHANGES=rw:BASE=ro"
	fi
}

do_uninstall() {
	local helper helpers name
	mapfile -t helpers < <(installed_helpers)
	# A helper that was removed by hand may have left its diversion behind.
	[[ " ${helpers[*]} " == *" mount.unionfs "* ]] || helpers+=(mount.unionfs)
	for helper in "${helpers[@]}"; do
		uninstall_helper "$helper"
		rm -f "$DESTDIR$man/man8/$helper.8"
	done
	for name in "${checkers[@]}"; do
		if is_ours "$DESTDIR$SBINDIR/$name"; then rm -f "$DESTDIR$SBINDIR/$name"; fi
		rm -f "$DESTDIR$man/man8/$name.8"
	done
	for name in "${commands[@]:1}"; do
		if [[ -L $DESTDIR$PREFIX/bin/$name ]]; then rm -f "$DESTDIR$PREFIX/bin/$name"; fi
	done
	for name in "${commands[@]}"; do rm -f "$DESTDIR$man/man1/$name"{,-*}.1; done
	for name in "${commands[@]}" "${checkers[@]}" "${helpers[@]}"; do
		rm -f "$DESTDIR$PREFIX/share/bash-completion/completions/$name" \
			"$DESTDIR$PREFIX/share/zsh/site-functions/_$name" \
			"$DESTDIR$PREFIX/share/fish/vendor_completions.d/$name.fish"
	done
	rm -f "$DESTDIR$program" "$DESTDIR$PREFIX/include/strata_layer.h"
	if [[ -d $DESTDIR$PREFIX ]]; then library uninstall build; fi
	note "Removed Strata from $DESTDIR$PREFIX and $DESTDIR$SBINDIR."
}

case ${1:-} in
install | uninstall)
	need_rights "$1"
	"do_$1"
	;;
*) die "usage: install.sh install|uninstall" ;;
esac
