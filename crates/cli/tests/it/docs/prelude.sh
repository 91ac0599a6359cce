# shellcheck shell=bash
# Functions for the hidden commands of the pages.

# damage FILE BLOCK: damages the newest version of a block of a container
# (docs/formats/container.md).
damage() {
	local entry=$((1024 + 64 * $2)) slot first second unit
	first=$(od -An -tu8 -j "$entry" -N 8 "$1")
	second=$(od -An -tu8 -j $((entry + 32)) -N 8 "$1")
	slot=$((second > first ? entry + 32 : entry))
	unit=$(od -An -tu4 -j $((slot + 8)) -N 4 "$1")
	printf damaged | dd of="$1" bs=1 seek=$((4096 + unit * 64)) conv=notrunc status=none
}

# kill_server DIR: kills the server of a mount, and waits for its end.
kill_server() {
	local pid
	pid=$(strata info --json "$1" | sed 's/.*"pid":\([0-9]*\).*/\1/')
	kill -KILL "$pid"
	# The kernel aborts requests before it ends the connection.
	until [[ $(ls "$1" 2>&1) == *'endpoint is not connected' ]]; do sleep 0.01; done
}
