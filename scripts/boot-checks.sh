# shellcheck shell=sh disable=SC2034 # the init that sources this prints the counts
# Sourced by the init of the boot tests: runs and counts checks.
passed=0 failed=0

# check NAME COMMAND...: the command must succeed; otherwise its output is shown.
check() {
    name=$1
    shift
    if "$@" >/tmp/out 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $name"
        cat /tmp/out
    fi
}
is() { [ "$1" = "$2" ] || { echo "got '$1', wanted '$2'"; return 1; }; }
