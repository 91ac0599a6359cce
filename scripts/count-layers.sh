#!/usr/bin/env bash
# Counts each layer's lines of code, without blank lines, comments and tests.
#
#   count-layers.sh           prints the table
#   count-layers.sh --write   puts it into docs/layers.md
#   count-layers.sh --check   fails if docs/layers.md lacks a layer or is off by more than 10 %
set -euo pipefail
cd "$(dirname "$0")/.."

page=docs/layers.md
begin='<!-- counted -->'
end='<!-- counted until here -->'

# code FILE...: prints the number of lines that are code.
code() {
	# shellcheck disable=SC2016
	awk '
		FNR == 1 { tests = 0; comment = 0 }
		/^#\[cfg\(test\)\]/ { tests = 1 }
		tests { next }
		/^[ \t]*\/\*/ { comment = 1 }
		comment { if (/\*\//) comment = 0; next }
		/^[ \t]*(\/\/.*)?$/ { next }
		{ lines++ }
		END { print lines + 0 }
	' "$@"
}

# crate NAME: prints the crate's source files, without tests.
crate() { find "crates/$1/src" -name '*.rs' ! -name 'tests.rs' | sort; }

# row LAYER WHAT FILE...: prints a row of the table.
row() {
	local layer=$1 what=$2
	shift 2
	[[ -e ${1:-} ]] || return 0
	echo "| \`$layer\` | $what | $(code "$@") |"
}

rows() {
	local layer
	row rot13 'names' crates/layers/src/rot13.rs
	row casefold 'names, several of which refer to one entry' crates/layers/src/casefold.rs
	row worldread 'attributes' crates/layers/src/worldread.rs
	row xor 'data' crates/layers/src/xor.rs
	row zstd 'data of another size' crates/layers/src/zstd.rs
	row vowels 'names, in C' examples/c/vowels.c
	row runs 'data of another size, in C' examples/c/runs.c
	row trash 'operations, in C' examples/c/trash.c
	for layer in cryptfs snoopfs usenetfs lbfs viewfs; do
		case $layer in
		cryptfs) what='names, data, attributes; without the format (`cryptformat`)' ;;
		snoopfs) what='operations' ;;
		usenetfs) what='where names are stored; built on `vnode`' ;;
		lbfs) what='reads several directories; built on `vnode`' ;;
		viewfs) what='shows each process one of several directories; built on `vnode`' ;;
		esac
		if [[ -d crates/$layer/src ]]; then
			mapfile -t files < <(crate "$layer")
			row "$layer" "$what" "${files[@]}"
		fi
	done
	mapfile -t files < <(find crates/wrapfs/src/template crates/wrapfs/src/hooks -name '*.rs' ! -name 'tests.rs' | sort)
	row 'the template' 'shared by all layers above that use hooks' "${files[@]}"
	mapfile -t files < <(find crates/wrapfs/src -maxdepth 1 -name '*.rs' ! -name 'tests.rs' | sort)
	row wrapfs 'the null layer' "${files[@]}"
}

table() {
	echo '| layer | changes | lines of code |'
	echo '|---|---|---:|'
	rows
}

# Fails if docs/layers.md lacks a row of the table, or has one that is off by more than 10 %.
check() {
	local layer lines listed bad=0
	while IFS='|' read -r _ layer _ lines _; do
		lines=${lines// /}
		listed=$(awk -F'|' -v layer="$layer" '$2 == layer { gsub(/ /, "", $4); print $4; exit }' "$page")
		if [[ -z $listed ]] || ((10 * (lines > listed ? lines - listed : listed - lines) > lines + 20)); then
			echo "$page:$layer: has $lines lines of code; the page says ${listed:-nothing}" >&2
			bad=1
		fi
	done < <(rows)
	((bad == 0)) || { echo "run scripts/count-layers.sh --write" >&2; return 1; }
}

case ${1:-} in
'') table ;;
--check) check ;;
--write)
	new=$(mktemp)
	{
		sed "/^$begin\$/q" "$page"
		table
		sed -n "/^$end\$/,\$p" "$page"
	} >"$new"
	cat "$new" >"$page"
	rm -f "$new"
	;;
*)
	sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
	exit 1
	;;
esac
