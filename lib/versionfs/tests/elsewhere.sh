#!/usr/bin/env bash
# Runs programs outside of versionfs with and without the library, and compares what they print:
# elsewhere.sh BUILD
set -euo pipefail
library=$(readlink -f "$1")/libversionfs.so
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
cd "$top"
export LC_ALL=C GIT_CONFIG_GLOBAL=/dev/null
mkdir -p 'dir/a;1/sub'
echo text > 'dir/a;1/sub/f;2'
ln -s 'a;1' dir/link
cat > hello.c <<'END'
#include <stdio.h>
int main(void) { puts("hello"); return 0; }
END
failed=0
same() {
	local plain with
	plain=$(bash -c "$1" 2>&1; echo "status $?") || true
	with=$(LD_PRELOAD=$library bash -c "$1" 2>&1; echo "status $?") || true
	if [[ $plain != "$with" ]]; then
		printf 'FAILED: %s\n  without: %q\n  with:    %q\n' "$1" "$plain" "$with" >&2
		failed=1
	fi
}
same "rm -rf repo; git init -q repo && cd repo && cp ../hello.c 'x;1' && git add -A && git -c user.name=a -c user.email=b commit -qm c && git status --short && git mv 'x;1' y && git status --short && git ls-files"
same "gcc -o hello hello.c && ./hello && rm hello"
same "python3 -c 'import os, glob; print(sorted(glob.glob(\"/etc/p*\"))); print(sorted(os.listdir(\"dir/a;1\"))); os.chdir(\"dir/a;1\"); print(os.getcwd())'"
same "tar cf t.tar dir && rm -rf out && mkdir out && tar xf t.tar -C out && find out | sort && rm -r out t.tar"
same "find dir | sort; ls -laR dir | wc -l; cat 'dir/a;1/sub/f;2' 'dir/a;1/none;3' 'dir/none;1/x'"
same "cp -a dir copy && diff -r dir copy && mv copy moved && chmod -R u=rwX moved && rm -r moved"
same "realpath 'dir/link/sub' 'dir/none;1/x'; readlink dir/link; stat -c %n-%s 'dir/a;1/sub/f;2' 'nothing;8'"
same "for i in 1 2 3; do (echo \$i > n; cat n) & wait; done; cd 'dir/a;1' && pwd; echo dir/*"
same "rsync -a dir/ synced 2>/dev/null; ls synced 2>/dev/null; rm -rf synced"
same "perl -e 'opendir D, \"dir\"; print join \",\", sort readdir D'"
same "touch 'new;1' && mv 'new;1' 'new;2' && echo > 'new;2' && rm 'new;2' && mkdir 'd;1' && rmdir 'd;1'; rm 'gone;1'"
((failed == 0)) || exit 1
echo "elsewhere.sh: no differences"
