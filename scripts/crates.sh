#!/usr/bin/env bash
# Generates the section on crates in ARCHITECTURE.md from `cargo metadata`: a graph of their
# dependencies, and a table of their purposes and dependencies.
#
#   crates.sh           prints the section
#   crates.sh --write   puts it into ARCHITECTURE.md
#   crates.sh --check   fails if ARCHITECTURE.md is out of date
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

page=ARCHITECTURE.md
begin='<!-- crates -->'
end='<!-- crates end -->'

# Prints the graph, without arrows that follow from others, and the table. Crates without
# dependencies of ours are last, so that dependencies are below.
section() {
	as_builder cargo metadata --no-deps --locked --format-version 1 | python3 -c '
import json, sys
packages = {p["name"]: p for p in json.load(sys.stdin)["packages"] if "/crates/" in p["manifest_path"]}
uses = {
    name: sorted(d["name"] for d in p["dependencies"] if d["kind"] is None and d["name"] in packages)
    for name, p in packages.items()
}
def height(name):
    return 1 + max((height(other) for other in uses[name]), default=0)
def below(name):
    return set(uses[name]).union(*(below(other) for other in uses[name]))
print("```mermaid\ngraph TD")
for name in sorted(uses):
    indirect = set().union(*(below(other) for other in uses[name]))
    for other in uses[name]:
        if other not in indirect:
            print(f"    {name} --> {other}")
print("```\n\n| crate | what it is | uses |\n|---|---|---|")
for name in sorted(packages, key=lambda name: (-height(name), name)):
    others = ", ".join(f"`{other}`" for other in uses[name]) or "none of ours"
    print("| `%s` | %s | %s |" % (name, packages[name]["description"].rstrip("."), others))
'
}

case ${1:-} in
'') section ;;
--write | --check)
	wanted=$(awk -v begin="$begin" -v end="$end" -v section="$(section)" '
		$0 == begin { print; print ""; print section; print ""; skip = 1 }
		$0 == end { skip = 0 }
		!skip { print }
	' "$page")
	if [[ $1 == --write ]]; then
		printf '%s\n' "$wanted" >"$page"
	elif [[ $wanted != "$(cat "$page")" ]]; then
		die "$page: the section on crates is out of date: run scripts/crates.sh --write"
	fi
	;;
*) die "crates.sh: $1: unknown option: expected --write or --check" ;;
esac
