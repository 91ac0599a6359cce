/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Functions that open files. An old version opens read-only; otherwise EROFS. */
#define _GNU_SOURCE
#include "preload.h"

#include <linux/openat2.h>
#include <stdarg.h>
#include <sys/syscall.h>

/* Returns 0 if a version can be opened with these flags, or the error. */
static int refusal(uint64_t flags)
{
	if ((flags & O_CREAT) && (flags & O_EXCL))
		return EEXIST;
	if ((flags & O_PATH) == 0 && ((flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC)))
		return EROFS;
	return 0;
}

/* Returns whether the flags would create a file with the name of a version. */
static bool creates_version(int dirfd, const char *path, uint64_t flags)
{
	return (flags & O_CREAT) && is_old_version(dirfd, path);
}

/* Opens a spot. */
static int open_spot(struct spot *spot, int flags, mode_t mode)
{
	int error = spot->is_version ? refusal((uint64_t)flags) : 0;
	if (error) {
		errno = error;
		return -1;
	}
	if (spot->is_version)
		flags &= ~O_CREAT;
	return REAL(openat)(spot->dir, spot->path, flags, mode);
}

static int open_path(int dirfd, const char *path, int flags, mode_t mode)
{
	/* A path with a version is checked first if the call would create a file. */
	int saved = errno;
	if (!creates_version(dirfd, path, (uint64_t)flags)) {
		int fd = REAL(openat)(dirfd, path, flags, mode);
		if (fd != -1 || !is_absent(errno) || !names_version(path))
			return fd;
	}
	struct spot spot;
	if (!spot_find(dirfd, path, &spot))
		return -1;
	int fd = open_spot(&spot, flags, mode);
	spot_close(&spot);
	RETURN(fd, saved);
}

static bool needs_mode(int flags)
{
	return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

EXPORT int open(const char *path, int flags, ...)
{
	mode_t mode = 0;
	if (needs_mode(flags)) {
		va_list arguments;
		va_start(arguments, flags);
		mode = va_arg(arguments, mode_t);
		va_end(arguments);
	}
	return open_path(AT_FDCWD, path, flags, mode);
}
ALIAS(open64, open);
ALIAS(__open, open);
ALIAS(__open64, open);

EXPORT int openat(int dirfd, const char *path, int flags, ...)
{
	mode_t mode = 0;
	if (needs_mode(flags)) {
		va_list arguments;
		va_start(arguments, flags);
		mode = va_arg(arguments, mode_t);
		va_end(arguments);
	}
	return open_path(dirfd, path, flags, mode);
}
ALIAS(openat64, openat);

/* Programs that are compiled with _FORTIFY_SOURCE call these, without O_CREAT. */
EXPORT int __open_2(const char *path, int flags)
{
	return open_path(AT_FDCWD, path, flags, 0);
}
ALIAS(__open64_2, __open_2);

EXPORT int __openat_2(int dirfd, const char *path, int flags)
{
	return open_path(dirfd, path, flags, 0);
}
ALIAS(__openat64_2, __openat_2);

EXPORT int creat(const char *path, mode_t mode)
{
	return open_path(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
ALIAS(creat64, creat);

/* glibc has this wrapper since 2.43. Before that, no program imports it. */
EXPORT int openat2(int dirfd, const char *path, const struct open_how *how, size_t size)
{
	int saved = errno;
	if (size < sizeof *how || !creates_version(dirfd, path, how->flags)) {
		int fd = (int)syscall(SYS_openat2, dirfd, path, how, size);
		/* A path that must not leave a directory is not resolved in parts. */
		if (fd != -1 || !is_absent(errno) || !names_version(path) || how->resolve != 0)
			return fd;
	}
	struct spot spot;
	if (!spot_find(dirfd, path, &spot))
		return -1;
	int fd = open_spot(&spot, (int)how->flags, (mode_t)how->mode);
	spot_close(&spot);
	RETURN(fd, saved);
}

/* Returns the flags of a mode of fopen(3). */
static int stream_flags(const char *mode)
{
	int flags = *mode == 'r' ? O_RDONLY : O_CREAT | O_WRONLY;
	if (strchr(mode, '+'))
		flags = (flags & ~O_ACCMODE) | O_RDWR;
	return flags | (strchr(mode, 'e') ? O_CLOEXEC : 0) | (strchr(mode, 'x') ? O_EXCL : 0);
}

/* Opens the version that a path names for a stream, or returns -1. */
static int open_for_stream(const char *path, const char *mode)
{
	struct spot spot;
	if (!spot_find(AT_FDCWD, path, &spot))
		return -1;
	int fd = open_spot(&spot, stream_flags(mode) | (*mode == 'w' && !spot.is_version ? O_TRUNC : 0), 0666);
	spot_close(&spot);
	return fd;
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
	int saved = errno;
	if (!creates_version(AT_FDCWD, path, (uint64_t)stream_flags(mode))) {
		FILE *file = REAL(fopen)(path, mode);
		if (file || !is_absent(errno) || !names_version(path))
			return file;
	}
	int fd = open_for_stream(path, mode);
	if (fd == -1)
		return NULL;
	FILE *file = fdopen(fd, mode);
	if (file)
		errno = saved;
	else
		close(fd);
	return file;
}
ALIAS(fopen64, fopen);

EXPORT FILE *freopen(const char *path, const char *mode, FILE *file)
{
	/* The real function closes the stream if it fails, so a version is looked for first. */
	char proc[64];
	struct stat st;
	if (!names_version(path) || REAL(stat)(path, &st) == 0)
		return REAL(freopen)(path, mode, file);
	int saved = errno, fd = open_for_stream(path, mode);
	if (fd == -1 && !is_absent(errno)) {
		int error = errno;
		fclose(file);
		errno = error;
		return NULL;
	}
	errno = saved;
	if (fd == -1)
		return REAL(freopen)(path, mode, file);
	snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
	FILE *result = REAL(freopen)(proc, mode, file);
	int error = errno;
	close(fd);
	errno = result ? saved : error;
	return result;
}
ALIAS(freopen64, freopen);
