/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Functions that read attributes. */
#define _GNU_SOURCE
#include "preload.h"

/* Version of struct stat that old programs pass to __xstat(). */
#if defined(__x86_64__)
#define STAT_VERSION 1
#else
#define STAT_VERSION 0
#endif

EXPORT int fstatat(int dirfd, const char *path, struct stat *st, int flags)
{
	READ_OR_VERSION(dirfd, path, REAL(fstatat)(dirfd, path, st, flags),
	                REAL(fstatat)(spot.dir, spot.path, st, flags));
}
ALIAS(fstatat64, fstatat);

EXPORT int stat(const char *path, struct stat *st)
{
	READ_OR_VERSION(AT_FDCWD, path, REAL(stat)(path, st), REAL(fstatat)(spot.dir, spot.path, st, 0));
}
ALIAS(stat64, stat);

EXPORT int lstat(const char *path, struct stat *st)
{
	READ_OR_VERSION(AT_FDCWD, path, REAL(lstat)(path, st),
	                REAL(fstatat)(spot.dir, spot.path, st, AT_SYMLINK_NOFOLLOW));
}
ALIAS(lstat64, lstat);

EXPORT int statx(int dirfd, const char *path, int flags, unsigned mask, struct statx *stx)
{
	READ_OR_VERSION(dirfd, path, REAL(statx)(dirfd, path, flags, mask, stx),
	                REAL(statx)(spot.dir, spot.path, flags, mask, stx));
}

/* Programs that were compiled with a glibc before 2.33 call these. */
static int old_stat(int version, int dirfd, const char *path, struct stat *st, int flags)
{
	if (version != STAT_VERSION) {
		errno = EINVAL;
		return -1;
	}
	READ_OR_VERSION(dirfd, path, REAL(fstatat)(dirfd, path, st, flags),
	                REAL(fstatat)(spot.dir, spot.path, st, flags));
}

int __xstat(int version, const char *path, struct stat *st);
int __lxstat(int version, const char *path, struct stat *st);
int __fxstatat(int version, int dirfd, const char *path, struct stat *st, int flags);

EXPORT int __xstat(int version, const char *path, struct stat *st)
{
	return old_stat(version, AT_FDCWD, path, st, 0);
}
ALIAS(__xstat64, __xstat);

EXPORT int __lxstat(int version, const char *path, struct stat *st)
{
	return old_stat(version, AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}
ALIAS(__lxstat64, __lxstat);

EXPORT int __fxstatat(int version, int dirfd, const char *path, struct stat *st, int flags)
{
	return old_stat(version, dirfd, path, st, flags);
}
ALIAS(__fxstatat64, __fxstatat);

/* Checks the access to a spot. Nobody may write an old version. */
static int access_spot(const struct spot *spot, int mode, int flags)
{
	if (spot->is_version && (mode & W_OK)) {
		errno = EROFS;
		return -1;
	}
	return REAL(faccessat)(spot->dir, spot->path, mode, flags);
}

EXPORT int access(const char *path, int mode)
{
	READ_OR_VERSION(AT_FDCWD, path, REAL(access)(path, mode), access_spot(&spot, mode, 0));
}

EXPORT int faccessat(int dirfd, const char *path, int mode, int flags)
{
	READ_OR_VERSION(dirfd, path, REAL(faccessat)(dirfd, path, mode, flags),
	                access_spot(&spot, mode, flags));
}

EXPORT int euidaccess(const char *path, int mode)
{
	READ_OR_VERSION(AT_FDCWD, path, REAL(euidaccess)(path, mode), access_spot(&spot, mode, AT_EACCESS));
}
ALIAS(eaccess, euidaccess);

EXPORT ssize_t readlink(const char *path, char *target, size_t size)
{
	READ_OR_VERSION(AT_FDCWD, path, REAL(readlink)(path, target, size),
	                REAL(readlinkat)(spot.dir, spot.path, target, size));
}

EXPORT ssize_t readlinkat(int dirfd, const char *path, char *target, size_t size)
{
	READ_OR_VERSION(dirfd, path, REAL(readlinkat)(dirfd, path, target, size),
	                REAL(readlinkat)(spot.dir, spot.path, target, size));
}

ssize_t __readlink_chk(const char *path, char *target, size_t size, size_t buffer);
ssize_t __readlinkat_chk(int dirfd, const char *path, char *target, size_t size, size_t buffer);

/* Programs that are compiled with _FORTIFY_SOURCE call these. */
EXPORT ssize_t __readlink_chk(const char *path, char *target, size_t size, size_t buffer)
{
	if (size > buffer)
		abort();
	return readlink(path, target, size);
}

EXPORT ssize_t __readlinkat_chk(int dirfd, const char *path, char *target, size_t size, size_t buffer)
{
	if (size > buffer)
		abort();
	return readlinkat(dirfd, path, target, size);
}

EXPORT int statfs(const char *path, struct statfs *fs)
{
	READ_OR_VERSION(AT_FDCWD, path, REAL(statfs)(path, fs), fstatfs(spot.dir, fs));
}
ALIAS(statfs64, statfs);

EXPORT int statvfs(const char *path, struct statvfs *fs)
{
	READ_OR_VERSION(AT_FDCWD, path, REAL(statvfs)(path, fs), fstatvfs(spot.dir, fs));
}
ALIAS(statvfs64, statvfs);

/* Reads a limit, of which -1 without an error means that there is none. */
EXPORT long pathconf(const char *path, int name)
{
	int saved = errno;
	struct spot spot;
	long result = REAL(pathconf)(path, name);
	if (result != -1 || !is_absent(errno) || !names_version(path) || !spot_find(AT_FDCWD, path, &spot))
		return result;
	errno = saved;
	result = fpathconf(spot.dir, name);
	spot_close(&spot);
	return result;
}

EXPORT ssize_t getxattr(const char *path, const char *name, void *value, size_t size)
{
	char proc[PATH_MAX];
	READ_OR_VERSION(AT_FDCWD, path, REAL(getxattr)(path, name, value, size),
	                REAL(getxattr)(spot_proc_path(&spot, proc), name, value, size));
}

EXPORT ssize_t lgetxattr(const char *path, const char *name, void *value, size_t size)
{
	char proc[PATH_MAX];
	READ_OR_VERSION(AT_FDCWD, path, REAL(lgetxattr)(path, name, value, size),
	                REAL(lgetxattr)(spot_proc_path(&spot, proc), name, value, size));
}

EXPORT ssize_t listxattr(const char *path, char *list, size_t size)
{
	char proc[PATH_MAX];
	READ_OR_VERSION(AT_FDCWD, path, REAL(listxattr)(path, list, size),
	                REAL(listxattr)(spot_proc_path(&spot, proc), list, size));
}

EXPORT ssize_t llistxattr(const char *path, char *list, size_t size)
{
	char proc[PATH_MAX];
	READ_OR_VERSION(AT_FDCWD, path, REAL(llistxattr)(path, list, size),
	                REAL(llistxattr)(spot_proc_path(&spot, proc), list, size));
}
