#!/usr/bin/env bash
# The table of crates in ARCHITECTURE.md: what each one is, and which others it uses, from `cargo metadata`.
#
#   crates.sh           prints the table
#   crates.sh --write   puts it into ARCHITECTURE.md
#   crates.sh --check   fails if ARCHITECTURE.md has another one
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

page=ARCHITECTURE.md
begin='<!-- crates -->'
end='<!-- crates end -->'

# Crates that use none of ours come last: arrows point down.
table() {
	as_builder cargo metadata --no-deps --locked --format-version 1 | python3 -c '
import json, sys
packages = {p["name"]: p for p in json.load(sys.stdin)["packages"] if "/crates/" in p["manifest_path"]}
uses = {
    name: sorted(d["name"] for d in p["dependencies"] if d["kind"] is None and d["name"] in packages)
    for name, p in packages.items()
}
def height(name):
    return 1 + max((height(below) for below in uses[name]), default=0)
print("| crate | what it is | uses |\n|---|---|---|")
for name in sorted(packages, key=lambda name: (-height(name), name)):
    below = ", ".join(f"`{other}`" for other in uses[name]) or "none of ours"
    print("| `%s` | %s | %s |" % (name, packages[name]["description"].rstrip("."), below))
'
}

# graph: the same as a drawing. An arrow that follows from others is left out.
drawing() {
	as_builder cargo metadata --no-deps --locked --format-version 1 | python3 -c '
import json, sys
packages = {p["name"]: p for p in json.load(sys.stdin)["packages"] if "/crates/" in p["manifest_path"]}
uses = {
    name: {d["name"] for d in p["dependencies"] if d["kind"] is None and d["name"] in packages}
    for name, p in packages.items()
}
def below(name):
    return uses[name].union(*(below(other) for other in uses[name]))
print("```mermaid\ngraph TD")
for name in sorted(uses):
    indirect = set().union(*(below(other) for other in uses[name]))
    for other in sorted(uses[name] - indirect):
        print(f"    {name} --> {other}")
print("```")
'
}

section() {
	drawing
	printf '\n'
	table
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
		die "$page does not have today's crates: scripts/crates.sh --write"
	fi
	;;
*) die "crates.sh: $1: not --write or --check" ;;
esac
