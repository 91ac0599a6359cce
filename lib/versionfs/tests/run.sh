#!/usr/bin/env bash
# Mounts the fake server and runs the tests on it: run.sh BUILD
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
build=$(readlink -f "$1")
top=$(mktemp -d)
mkdir "$top/source" "$top/mnt"
"$build/tests/fake" "$top/source" "$top/mnt" -f -s &
server=$!
trap 'umount -l "$top/mnt" 2>/dev/null; wait "$server" 2>/dev/null; rm -rf "$top"' EXIT
for _ in $(seq 50); do mountpoint -q "$top/mnt" && break; sleep 0.1; done
BUILD=$build "$here/session.sh" "$top/mnt"
