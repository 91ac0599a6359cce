#!/bin/sh
# Sourced by the tests that boot Debian 12's kernel (6.1) in qemu: sets $cache, where it puts the
# kernel, vmlinuz, and the modules that the tests need, and defines `boot`. Exits with 0 if Debian's
# kernel is another one.
cache=$(realpath -m "$(dirname "$0")/../cache/kernel-6.1")
modules='fuse loop squashfs xxhash zstd_decompress lz4_decompress lzo_decompress'
mkdir -p "$cache"

if [ ! -e "$cache/complete" ]; then
    apt-get -qq update
    package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
    case $package in
        linux-image-6.1.*) ;;
        '') echo "old-kernel.sh: apt knows no linux-image-amd64: the package lists are missing" >&2; exit 1 ;;
        *)
            echo "old-kernel.sh: Debian's kernel is $package, not 6.1: skipped"
            [ -z "${STRATA_SKIPPED:-}" ] || echo "$0: Debian's kernel is $package, not 6.1" >>"$STRATA_SKIPPED"
            exit 0
            ;;
    esac
    echo "old-kernel.sh: unpacking $package (not installed)"
    (cd "$cache" && apt-get download "$package" >apt.log 2>&1 && dpkg -x linux-image-*.deb tree && rm linux-image-*.deb)
    cp "$cache"/tree/boot/vmlinuz-* "$cache/vmlinuz"
    for module in $modules; do find "$cache/tree" -name "$module.ko" -exec cp {} "$cache/" \;; done
    rm -rf "$cache/tree"
    touch "$cache/complete"
fi

# Boots the kernel with an initramfs, and prints what it writes to its console. Needs no KVM:
# software emulation boots within seconds. $1: the compressed initramfs; $2: kernel parameters.
boot() {
    timeout 300 qemu-system-x86_64 -accel tcg -m 1024 -smp 2 -kernel "$cache/vmlinuz" -initrd "$1" \
        -append "console=ttyS0 quiet panic=-1 ${2:-}" -nographic -no-reboot </dev/null 2>&1 || true
}

# Copies a program and its libraries into a directory tree. $1: the tree; $2: the program; $3: its
# path there.
copy_program() {
    cp "$2" "$1$3"
    ldd "$2" | grep -o '/[^ ]*' | while read -r lib; do
        mkdir -p "$1$(dirname "$lib")"
        cp -L "$lib" "$1$lib"
    done
}
