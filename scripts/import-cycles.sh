#!/bin/sh
# Fails if modules of a crate import each other in a cycle.
#
# A module is a file or a directory in src; files within one directory may import each other. Tests
# are ignored, and so is lib.rs, which only re-exports.
#
#   scripts/import-cycles.sh CRATE...        e.g. scripts/import-cycles.sh unionfs
set -eu
cd "$(dirname "$0")/.."
status=0
for crate in "$@"; do
    # One line per import: the importing module, then the imported one.
    edges=$(find "crates/$crate/src" -name '*.rs' ! -path '*/src/lib.rs' ! -path '*/src/main.rs' ! -name tests.rs |
        while read -r file; do
            module=${file#"crates/$crate/src/"}
            module=${module%%/*}
            awk -v module="${module%.rs}" '
                /^#\[cfg\(test\)\]/ { exit }
                { sub(/\/\/.*/, "") }
                { while (match($0, /(^|[^A-Za-z0-9_$])crate::[a-z_0-9]+/)) {
                      used = substr($0, RSTART, RLENGTH); sub(/.*crate::/, "", used)
                      if (used != module) print module, used
                      $0 = substr($0, RSTART + RLENGTH)
                  } }' "$file"
        done | sort -u)
    # tsort prints the members of each cycle.
    if ! cycles=$(printf '%s\n' "$edges" | tsort 2>&1 >/dev/null) || [ -n "$cycles" ]; then
        printf '%s\n' "import-cycles.sh: crates/$crate: modules import each other in a cycle: move the code that they share into a module below them:" >&2
        printf '%s\n' "$cycles" | sed -n 's/^tsort: \([a-z_0-9]*\)$/  \1/p' | sort -u >&2
        status=1
    fi
done
exit $status
