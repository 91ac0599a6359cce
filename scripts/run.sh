#!/usr/bin/env bash
# A demonstration of the main use: mounts a Debian system from a read-only image, makes it writable
# with a union, installs a package in it and unmounts it.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

package=figlet
suite=$(. /etc/os-release && if [[ ${ID:-} == debian ]]; then echo "${VERSION_CODENAME:-}"; fi)
suite=${STRATA_SUITE:-${suite:-bookworm}}
arch=$(dpkg --print-architecture 2>/dev/null || echo amd64)
cache=cache
image=$cache/debian-$suite-$arch.squashfs
bin=$(realpath -m "${CARGO_TARGET_DIR:-target}")/release
uring=/sys/module/fuse/parameters/enable_uring

need_root run

# --- In the caller's mount namespace: dependencies and the image --------------------------------

prepare() {
	step "Dependencies"
	scripts/deps.sh build run
	note "Building Strata (release) ..."
	scripts/build.sh --quiet
	modprobe -q fuse 2>/dev/null || true
	[[ -e /dev/fuse ]] || die "/dev/fuse is missing: load the module (modprobe fuse), or give the container --device /dev/fuse"
	[[ -f $image ]] || make_image
	note "Image: $image, $(du -h "$image" | cut -f1), a minimal Debian $suite made by debootstrap."
}

# Prints the Debian mirror that this machine uses; it may be a local one.
mirror() {
	local found
	found=$(apt-get indextargets --format '$(CODENAME) $(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
		awk -v suite="$suite" '($1 == suite || $2 == suite) && $3 == "main" && $4 ~ /^(http|https|file):/ {print $4; exit}')
	echo "${STRATA_MIRROR:-${found:-http://deb.debian.org/debian}}"
}

proxy_settings() {
	local PROXY=''
	eval "$(apt-config shell PROXY Acquire::http::Proxy)"
	[[ -z $PROXY || $PROXY == DIRECT ]] || export http_proxy=$PROXY
}

make_image() {
	step "Making the image: a real Debian $suite, from $(mirror)"
	local work=$cache/image.partial
	rm -rf --one-file-system "$work"
	mkdir -p "$work"
	proxy_settings
	note "debootstrap, about 60 MB to fetch, once ..."
	if ! debootstrap --variant=minbase --arch="$arch" "$suite" "$work/root" "$(mirror)" >"$cache/debootstrap.log" 2>&1; then
		tail -n 5 "$cache/debootstrap.log" >&2
		die "debootstrap failed: see $cache/debootstrap.log; set STRATA_MIRROR=URL to use another mirror"
	fi
	rm -f "$work/root/var/cache/apt/archives/"*.deb
	mksquashfs "$work/root" "$work/image" -noappend -comp zstd -quiet -no-progress >/dev/null
	mv "$work/image" "$image"
	rm -rf --one-file-system "$work"
}

# --- In a private mount namespace, whose mounts end with it --------------------------------------

cleanup() {
	local status=$?
	trap - EXIT
	set +e
	if [[ -n ${dir:-} ]]; then
		for mount in union/dev union/proc union image changes; do
			mountpoint -q "$dir/$mount" && { umount -R "$dir/$mount" 2>/dev/null || umount -R -l "$dir/$mount"; }
		done
		[[ -z ${sbin:-} ]] || umount "$sbin" 2>/dev/null
		mountpoint -q "$dir/sbin" && umount "$dir/sbin"
		rm -rf --one-file-system "$dir"
	fi
	if [[ -n ${uring_before:-} ]]; then
		echo "$uring_before" >"$uring" && note "FUSE over io_uring is set back to $uring_before."
	fi
	((status == 0)) || warn "Failed with status $status; all mounts are removed."
	exit "$status"
}

# Provides the mount helpers in /sbin, where mount(8) looks for them, in this namespace only.
provide_helpers() {
	sbin=$(realpath /sbin)
	mkdir "$dir/sbin"
	mount --bind "$sbin" "$dir/sbin"
	mount -t tmpfs -o size=4m,mode=755 helpers "$sbin"
	local name
	for name in "$dir"/sbin/*; do ln -s "$name" "$sbin/"; done
	for name in mount.unionfs mount.fuse.unionfs; do ln -sfn "$bin/strata" "$sbin/$name"; done
}

enable_uring() {
	[[ -w $uring ]] || return 0
	local now
	now=$(<"$uring")
	if [[ $now == N ]]; then
		uring_before=$now
		echo Y >"$uring"
		note "FUSE over io_uring is disabled on this machine: enabled for this run ($uring), then disabled again."
	fi
}

inside() { chroot "$dir/union" /usr/bin/env -i HOME=/root TERM="${TERM:-dumb}" PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C \
	DEBIAN_FRONTEND=noninteractive ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} "$@"; }

# Prints a line for each object on the writable branch, with its meaning.
list_changes() {
	local path name parent
	while IFS= read -r -d '' path; do
		name=${path##*/} parent=${path%"$name"}
		case $name in
		.wh..wh.*) printf '    %s. /%s%s\n' "$dim" "$path" "  (the union's metadata)$plain" ;;
		.wh.*)
			printf '    %s- /%s%s%s\n' "$red" "$parent${name#.wh.}" "$plain" "  (whiteout $name: hides the image's file, takes no space)"
			;;
		*)
			if [[ -d $dir/changes/$path && ! -L $dir/changes/$path ]]; then
				# A directory on both branches is merged: its copy holds only the entries listed
				# after it.
				[[ -d $dir/image/$path ]] || printf '    %s+ /%s/%s\n' "$green" "$path" "$plain"
			elif [[ -e $dir/image/$path || -L $dir/image/$path ]]; then
				printf '    %s~ /%s%s\n' "$yellow" "$path" "$plain"
			else
				printf '    %s+ /%s%s\n' "$green" "$path" "$plain"
			fi
			;;
		esac
	done < <(cd "$dir/changes" && find . -mindepth 1 -printf '%P\0' | sort -z)
}

demonstrate() {
	dir=$(mktemp -d /tmp/strata-run.XXXXXX)
	uring_before=''
	trap cleanup EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	mkdir "$dir/image" "$dir/changes" "$dir/union"
	provide_helpers
	proxy_settings

	step "A read-only image"
	local before after
	before=$(sha256sum "$image" | cut -d' ' -f1)
	note "sha256 of the image: $before"
	shown mount -t squashfs -o ro,loop "$image" "$dir/image"
	if touch "$dir/image/etc/x" 2>/dev/null; then die "the image can be written"; fi
	note "Writes to it fail with \"Read-only file system\": no package can be installed."

	step "A union makes it writable"
	enable_uring
	shown mount -t tmpfs -o mode=755 changes "$dir/changes"
	shown mount -t unionfs -o "dirs=$dir/changes=rw:$dir/image=ro" none "$dir/union"
	note "Two branches: the left one (empty, in memory) receives all changes; the right one is the image."
	shown findmnt -o TARGET,SOURCE,FSTYPE "$dir/union"
	shown df -h "$dir/union"

	step "Using the system"
	mount -t proc proc "$dir/union/proc"
	mount --rbind /dev "$dir/union/dev"
	mount --make-rslave "$dir/union/dev"
	cp -L /etc/resolv.conf "$dir/union/etc/resolv.conf" 2>/dev/null || true
	cp /etc/hosts "$dir/union/etc/hosts" 2>/dev/null || true
	note "chroot: apt, dpkg and the shell are now the image's."
	note "${bold}\$ apt-get update && apt-get install $package$plain"
	# Without progress bars: one line per step.
	inside apt-get -q -o APT::Update::Error-Mode=any update 2>&1 | sed 's/^/      /'
	inside apt-get -q -o Dpkg::Use-Pty=0 -o Dpkg::Progress-Fancy=0 install -y --no-install-recommends "$package" 2>&1 |
		sed 's/.*\r//; /^debconf: delaying/d; s/^/      /'
	note "${bold}\$ $package Strata$plain"
	inside "$package" Strata | sed "s/^/      $green/; s/\$/$plain/"
	note "Edit one file of the image and remove another."
	note "${bold}\$ echo '# edited' >>/etc/profile; rm /etc/issue$plain"
	inside sh -c "echo '# edited' >>/etc/profile; rm /etc/issue"
	inside sh -c 'test ! -e /etc/issue && tail -n 1 /etc/profile' | sed 's/^/      /'
	[[ ! -e $dir/image/usr/bin/$package ]] || die "the package reached the image"

	step "The writable branch holds the changes and nothing else"
	note "${green}+ new${plain}   ${yellow}~ changed: a copy hides the image's file${plain}   ${red}- removed: a whiteout hides it$plain"
	list_changes
	note "$(find "$dir/changes" -type f ! -name '.wh.*' | wc -l) files, $(du -sh "$dir/changes" | cut -f1); the image has $(find "$dir/image" -xdev -type f | wc -l) files."
	note "It is an ordinary directory. Keep it on a disk, and the union can be mounted again with its changes; discard it to discard them."

	step "The server"
	shown "$bin/strata" info "$dir/union"
	local server
	server=$("$bin/strata" info --json "$dir/union" | sed -n 's/.*"pid":\([0-9]*\).*/\1/p')
	note "Resident memory: $(awk '/^VmRSS/ {print $2}' "/proc/$server/status") KiB."

	step "Unmounting"
	umount -R "$dir/union/dev"
	umount "$dir/union/proc"
	shown umount "$dir/union"
	[[ -e $dir/image/etc/issue ]] || die "the image lost a file"
	note "The image still has /etc/issue and has no /usr/bin/$package."
	umount "$dir/image"
	after=$(sha256sum "$image" | cut -d' ' -f1)
	note "sha256 of the image: $after"
	[[ $before == "$after" ]] || die "the image changed"
	printf '\n%s%sThe image is unchanged, byte for byte.%s The system on it was used as if it were writable.\n' "$bold" "$green" "$plain"
}

if [[ ${1:-} == --inside ]]; then
	demonstrate
else
	prepare
	unshare --mount --propagation private "$0" --inside
fi
