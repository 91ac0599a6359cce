/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Parts of libversionfs.so, the preload library.
 *
 * | file | concept |
 * |---|---|
 * | preload_real.c | the functions of libc behind ours, and whether the library is active |
 * | preload_spot.c | finds the version that a path names |
 * | preload_open.c, preload_stat.c | functions that read: the real one first, then the version |
 * | preload_dir.c | listings with old versions |
 * | preload_change.c | functions that change: whole sets, or EROFS for an old version |
 * | preload_cwd.c | the working directory and realpath(3) |
 * | preload_walk.c | scandir(3), glob(3), ftw(3), fts(3): libc's call libc's own functions inside |
 *
 * Each function calls the real one first. Only if that fails with ENOENT or ENAMETOOLONG, and the
 * path has a component `NAME;N`, does the library look for a version. So a real file of that name has
 * its way, and other paths cost one scan of a failed path.
 *
 * 64-bit systems only: there `open64` is the same as `open`. */
#ifndef VERSIONFS_PRELOAD_H
#define VERSIONFS_PRELOAD_H

#include "command.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#if !defined(__LP64__)
#error "libversionfs needs a 64-bit system"
#endif

#define EXPORT __attribute__((visibility("default")))

/* Exports a second name of a function that is defined in the same file. */
#define ALIAS(second, first) \
	__asm__(".globl " #second "\n\t.type " #second ", @function\n\t.set " #second ", " #first)

/* Functions of libc that the library replaces. */
#define REAL_FUNCTIONS(X) \
	X(open) X(openat) X(creat) X(fopen) X(freopen) \
	X(fstatat) X(stat) X(lstat) X(statx) \
	X(access) X(faccessat) X(euidaccess) X(readlink) X(readlinkat) X(statfs) X(statvfs) X(pathconf) \
	X(getxattr) X(lgetxattr) X(listxattr) X(llistxattr) \
	X(opendir) X(fdopendir) X(closedir) X(readdir) X(readdir_r) X(telldir) X(seekdir) X(rewinddir) \
	X(rename) X(renameat) X(renameat2) X(unlink) X(unlinkat) X(rmdir) X(remove) \
	X(chown) X(lchown) X(fchownat) X(chmod) X(fchmodat) X(truncate) X(utimensat) \
	X(setxattr) X(lsetxattr) X(mkdir) X(mkdirat) X(link) X(linkat) X(symlink) X(symlinkat) \
	X(chdir) X(getcwd) X(realpath) \
	X(scandirat) X(glob) X(nftw) X(ftw) \
	X(fts_open) X(fts_read) X(fts_children) X(fts_set) X(fts_close)

enum real_index {
#define X(name) REAL_##name,
	REAL_FUNCTIONS(X)
#undef X
	REAL_COUNT
};

/* Returns a function of libc. Thread-safe; after the library's constructor, async-signal-safe. */
void *real_symbol(enum real_index index);
#define REAL(name) ((__typeof__(&name))real_symbol(REAL_##name))

/* Ways to change a whole set. */
enum change { CHANGE_RENAME, CHANGE_REMOVE, CHANGE_MODE, CHANGE_OWNER, CHANGE_COUNT };

/* Returns whether this program changes whole sets in this way. */
bool program_changes(enum change change);
/* Returns whether this program changes whole sets in any way. It then lists no versions. */
bool program_changes_any(void);

/* Returns whether a path has a component `NAME;N`. NULL has none. Always false if the library is
 * inactive. */
bool names_version(const char *path);

/* Returns whether the error may mean that a path names a version. */
static inline bool is_absent(int error)
{
	return error == ENOENT || error == ENAMETOOLONG;
}

/* Returns whether a directory is on a versionfs mount. Remembers the answer for each device for some
 * seconds. Preserves errno. */
bool on_versionfs(int dir);

/* The object that a path with a version names, by a directory and a path that the kernel knows. */
struct spot {
	int dir;
	const char *path;
	/* For the version itself; otherwise `path` is what follows the last version. */
	bool is_version;
	bool as_directory; /* a slash follows */
	uint64_t number;
	char name[VS_NAME_SIZE];
	char token[VS_NAME_SIZE + 1];
	size_t prefix; /* 1 + the length of the path before its first version */
};

/* Finds the object. Returns false if the path names no version: errno is then unchanged, or set if
 * the server refused. */
bool spot_find(int dirfd, const char *path, struct spot *spot);

/* Closes the directory. Preserves errno. */
void spot_close(struct spot *spot);

/* Writes a path of the object that any function of libc accepts while the spot is open. */
const char *spot_proc_path(const struct spot *spot, char path[PATH_MAX]);

/* Returns whether creating `path` is refused, because an old version has this name. */
bool is_old_version(int dirfd, const char *path);

/* Takes and releases the library's locks around fork(2). */
void directories_lock(void);
void directories_unlock(void);
void devices_lock(void);
void devices_unlock(void);
void cwd_lock(void);
void cwd_unlock(void);
void walks_lock(void);
void walks_unlock(void);

/* Replaces the kernel's path of the working directory, if that is inside an old version. */
char *cwd_translate(char *path, size_t size);

/* Ends a replacement function: restores errno after success. */
#define RETURN(result, saved) \
	do { \
		__typeof__(result) returned_ = (result); \
		if (returned_ != (__typeof__(result))-1) \
			errno = (saved); \
		return returned_; \
	} while (0)

/* Body of a function that reads: returns the real result, or, if the path names a version, the
 * result of an expression that uses `spot`. */
#define READ_OR_VERSION(dirfd, path, real, version) \
	int saved = errno; \
	__typeof__(real) result = real; \
	if (result != (__typeof__(real))-1 || !is_absent(errno) || !names_version(path)) \
		return result; \
	struct spot spot; \
	if (!spot_find(dirfd, path, &spot)) \
		return result; \
	result = version; \
	spot_close(&spot); \
	RETURN(result, saved)

#endif
