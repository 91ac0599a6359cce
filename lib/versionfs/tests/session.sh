#!/usr/bin/env bash
# Replays the session of the Versionfs paper, section 3.4.1, and runs more programs with the preload
# library, on a directory of a versionfs mount: BUILD=DIR session.sh DIRECTORY
#
# The directory must be empty. The mount must keep versions without limits.
set -euo pipefail
build=$(readlink -f "${BUILD:-$(dirname "$0")/../build}")
library=$build/libversionfs.so
cd "$1"
export LC_ALL=C
failed=0 checks=0

# Compares the output (both streams) of a command with the first argument.
expect() {
	local expected=$1 actual
	shift
	checks=$((checks + 1))
	actual=$(timeout 60 "$@" 2>&1) || true
	if [[ $actual != "$expected" ]]; then
		failed=$((failed + 1))
		printf 'FAILED: %s\n  expected: %q\n  actual:   %q\n' "$*" "$expected" "$actual" >&2
	fi
}
# The same with the library.
with() {
	local expected=$1
	shift
	expect "$expected" env LD_PRELOAD="$library" "$@"
}
fails_with() {
	local expected=$1
	shift
	checks=$((checks + 1))
	if actual=$(LD_PRELOAD=$library timeout 60 "$@" 2>&1) || [[ $actual != *"$expected"* ]]; then
		failed=$((failed + 1))
		printf 'FAILED: %s: no error %q: %q\n' "$*" "$expected" "$actual" >&2
	fi
}
lines() { printf '%s\n' "$@"; }

# The paper's session.
bash -c 'echo -n Hello > foo'
bash -c 'echo -n ", world" >> foo'
bash -c 'echo "!" >> foo'
expect foo ls
expect 'Hello, world!' cat foo
with "$(lines foo 'foo;1' 'foo;2')" ls
with Hello cat 'foo;1'
with 'Hello, world' cat 'foo;2'
with "$(lines 1c1 '< Hello, world!' --- '> Hello' '\ No newline at end of file')" diff foo 'foo;1'
with '' mv foo bar
with "$(lines bar 'bar;1' 'bar;2')" ls
with Hello cat 'bar;1'
with '' mv bar foo

# Attributes and the ways to list.
with 5 stat -c %s 'foo;1'
with 'regular file' stat -c %F 'foo;1'
with "$(lines . .. foo 'foo;1' 'foo;2')" ls -a
with 3 bash -c 'ls -l --color=always | grep -c foo'
with "$(lines . ./foo './foo;1' './foo;2')" bash -c 'find . | sort'
with "$(lines './foo;1' './foo;2')" bash -c "find . -name '*;*' -type f | sort"
with "$(lines foo 'foo;1' 'foo;2')" bash -c 'printf "%s\n" foo*'
with "$(lines foo 'foo;1' 'foo;2')" bash -c 'tar cf - . | env -u LD_PRELOAD tar tf - | sed -n "s|^\./\(.\)|\1|p" | sort'
with "['foo', 'foo;1', 'foo;2']" python3 -c 'import os; print(sorted(os.listdir(".")))'
with "['foo;1', 'foo;2']" python3 -c 'import glob; print(sorted(glob.glob("foo;*")))'
with Hello python3 -c 'print(open("foo;1").read())'
with 5 python3 -c 'import os; print(os.stat("foo;1").st_size)'
with 'foo;1' python3 -c 'import os; print(os.path.basename(os.path.realpath("foo;1")))'
with True python3 -c 'import os; print(os.path.samestat(os.stat("foo;1"), os.fstat(os.open("foo;1", 0))))'
with Hello bash -c 'cat < "foo;1"'
with Hello sed -n p 'foo;1'
with 1 grep -c Hello 'foo;1'
with Hello perl -e 'open F, "<", "foo;1"; print <F>'
with Hello vim -es -u NONE +%print -c 'qa!' 'foo;1'
with '' test -e 'foo;1'
with no bash -c 'test -w "foo;1" || echo no'

# Old versions can't be changed.
fails_with 'Read-only file system' bash -c 'echo more > "foo;1"'
fails_with 'Read-only file system' bash -c 'echo more >> "foo;1"'
fails_with 'Read-only file system' rm -f 'foo;1'
fails_with 'Read-only file system' mv 'foo;1' other
fails_with 'Read-only file system' chmod 600 'foo;1'
fails_with 'Read-only file system' touch 'foo;1'
fails_with 'No such file' cat 'foo;9'
fails_with 'No such file' cat 'none;1'

# Copies, and recovery to the head.
with '' cp 'foo;1' copy
expect Hello cat copy
with '' cp -a 'foo;2' copy2
expect 'Hello, world' cat copy2
with '' rm copy copy2
with "$(lines foo 'foo;1' 'foo;2')" ls

# A real file of that name has its way.
bash -c 'echo real > "real;1"'
with real cat 'real;1'
with "$(lines foo 'foo;1' 'foo;2' 'real;1')" ls
with '' rm 'real;1'

# chmod and chown act on the whole set.
with '' chmod 640 foo
with 640 stat -c %a 'foo;1'
with 640 stat -c %a foo

# An editor's save keeps the history, though vi renames the file and removes the old one.
mkdir ed
bash -c 'echo one > ed/text'
for n in two three; do
	LD_PRELOAD=$library vim -es -u NONE -c 'set nocp wb bkc=no' -c "s/.*/$n/" -c wq ed/text </dev/null
done
expect three cat ed/text
with one cat 'ed/text;1'
with two cat 'ed/text;2'
with '' rm -r ed
expect foo ls

# Removing a file removes its set.
with '' rm foo
with '' ls
expect '' ls

# A removed directory, with files removed before it.
mkdir C C/sub
bash -c 'echo b > C/b; echo d > C/sub/d'
rm -r C
expect '' ls
with 'C;1' ls
with "$(lines 'b;1' 'sub;1')" ls 'C;1'
with "$(lines 'b;1' 'sub;1')" ls 'C;1/'
with b cat 'C;1/b;1'
with d cat 'C;1/sub;1/d;1'
with d cat "$PWD/C;1/sub;1/d;1"
with directory stat -c %F 'C;1'
with "$(lines 'C;1' 'C;1/b;1' 'C;1/sub;1' 'C;1/sub;1/d;1')" bash -c "find 'C;1' | sort"
with 'b;1' bash -c 'cd "C;1" && ls b*'
with "$PWD/C;1" bash -c 'cd "C;1" && pwd'
with "$PWD/C;1" python3 -c 'import os; os.chdir("C;1"); print(os.getcwd())'
with b python3 -c 'import os; os.chdir("C;1"); print(open("b;1").read().strip())'
with "$PWD/C;1/b;1" realpath 'C;1/b;1'
with "$(lines 'C;1/' 'C;1/b;1' 'C;1/sub;1/' 'C;1/sub;1/d;1')" bash -c "tar cf - 'C;1' | env -u LD_PRELOAD tar tf - | sort"
fails_with 'Not a directory' ls 'C;1/b;1/x'
with '' cp -r 'C;1' restored
expect "$(lines 'b;1' 'sub;1')" ls restored
with '' rm -r restored
with 'C;1' ls
fails_with 'Read-only file system' rm -rf 'C;1'

# Programs that call libc's own walks, and the client interface.
if [[ -x $build/tests/calls ]]; then
	bash -c 'echo one > f; echo two > f'
	expect ok env LD_PRELOAD="$library" "$build/tests/calls" .
	expect ok "$build/tests/client" .
	with '' rm f
fi

# Many versions, and names with blanks and backslashes.
for i in $(seq 120); do echo "$i" > 'a b\c'; done
with 119 bash -c 'ls | grep -c "^a b.c;"'
with 60 cat 'a b\c;60'
with '' rm 'a b\c'
with 'C;1' ls

# Without the library.
expect '' ls
expect '' env LD_PRELOAD="$library" VERSIONFS_PRELOAD=off ls

if ((failed)); then
	echo "session.sh: $failed of $checks checks failed" >&2
	exit 1
fi
echo "session.sh: $checks checks passed"
