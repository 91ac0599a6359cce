#!/usr/bin/env bash
# Brings what the mounted tests need and the workspace does not hold: two third-party suites from crates.io, built into
# cache/tools/bin (STRATA_TOOLS chooses another place), and Debian packages. Does nothing where all is there already.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=${STRATA_TOOLS:-$PWD/cache/tools}
pjdfstest_version=0.2.2
fsx_version=0.3.2

# crate NAME VERSION: installs it unless that very version is there.
crate() {
    local stamp=$tools/.$1-$2
    [ -e "$stamp" ] && [ -x "$tools/bin/$1" ] && return 0
    cargo install --quiet --locked --root "$tools" --target-dir "$tools/build" --version "$2" "$1"
    touch "$stamp"
}

mkdir -p "$tools"
crate pjdfstest "$pjdfstest_version"
crate fsx "$fsx_version"
rm -rf "$tools/build"

packages=()
need() { command -v "$1" >/dev/null || [ -x "${3:-/nonexistent}" ] || packages+=("$2"); }
need losetup mount
need mkfs.ext4 e2fsprogs
need setfacl acl
need setfattr attr
need setcap libcap2-bin
need rsync rsync
need sqlite3 sqlite3
need git git
need gcc gcc
need make make
need perl perl
need initdb postgresql-15 /usr/lib/postgresql/15/bin/initdb
if [ ${#packages[@]} -gt 0 ]; then
    echo "installing for the tests: ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi
