/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The client interface: resolves paths to a directory and a name, and sends the command. */
#define _GNU_SOURCE
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* A name in a directory. */
struct place {
	int dir;
	char name[VS_NAME_SIZE];
};

static int fail(int error)
{
	errno = error;
	return -1;
}

/* Closes a descriptor. Preserves errno. */
static void drop(int fd)
{
	int error = errno;
	close(fd);
	errno = error;
}

static int open_directory(int dirfd, const char *path)
{
	return openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Opens the directory of a path, and copies its last component, of which trailing slashes are no
 * part. Returns 0 or -1. */
static int find_place(int dirfd, const char *path, struct place *place)
{
	char parent[PATH_MAX];
	if (!path)
		return fail(EINVAL);
	size_t end = strlen(path);
	while (end > 0 && path[end - 1] == '/')
		end--;
	size_t start = end;
	while (start > 0 && path[start - 1] != '/')
		start--;
	size_t length = end - start;
	if (length >= sizeof place->name || start >= sizeof parent)
		return fail(ENAMETOOLONG);
	memcpy(place->name, path + start, length);
	place->name[length] = '\0';
	if (length == 0 || strcmp(place->name, ".") == 0 || strcmp(place->name, "..") == 0)
		return fail(EINVAL);
	memcpy(parent, path, start);
	parent[start] = '\0';
	place->dir = open_directory(dirfd, start ? parent : ".");
	return place->dir == -1 ? -1 : 0;
}

EXPORT int vs_stat(int dirfd, const char *path, struct vs_set **set)
{
	struct place place;
	if (find_place(dirfd, path, &place) == -1)
		return -1;
	int result = vs_list(place.dir, place.name, 0, set);
	drop(place.dir);
	return result;
}

EXPORT void vs_free(struct vs_set *set)
{
	int error = errno;
	free(set);
	errno = error;
}

EXPORT void vs_version_stat(const struct vs_version *version, struct stat *st)
{
	memset(st, 0, sizeof *st);
	st->st_mode = version->mode;
	st->st_nlink = 1;
	st->st_uid = version->uid;
	st->st_gid = version->gid;
	st->st_size = (off_t)version->size;
	st->st_blksize = 4096;
	st->st_blocks = (blkcnt_t)(version->stored / 512 + (version->stored % 512 != 0));
	st->st_mtim = version->mtime;
	st->st_atim = version->mtime;
	/* Attributes of a version do not change after its birth. */
	st->st_ctim = version->born;
}

/* Opens a version in one of the ways of vs_token(). */
static int open_version(int dirfd, const char *path, uint64_t n, const char *how)
{
	struct place place;
	char token[VS_NAME_SIZE];
	int fd = -1;
	if (find_place(dirfd, path, &place) == -1)
		return -1;
	/* O_NONBLOCK: a version of a fifo must not wait for a writer. */
	if (vs_token(place.dir, place.name, n, how, token) == 0)
		fd = openat(place.dir, token, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	drop(place.dir);
	if (fd != -1)
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	return fd;
}

EXPORT int vs_open(int dirfd, const char *path, uint64_t n)
{
	return open_version(dirfd, path, n, "");
}

EXPORT int vs_open_raw(int dirfd, const char *path, uint64_t n)
{
	return open_version(dirfd, path, n, "raw");
}

EXPORT ssize_t vs_readlink(int dirfd, const char *path, uint64_t n, char *target, size_t size)
{
	struct place place;
	char token[VS_NAME_SIZE];
	ssize_t length = -1;
	if (find_place(dirfd, path, &place) == -1)
		return -1;
	if (vs_token(place.dir, place.name, n, "", token) == 0)
		length = readlinkat(place.dir, token, target, size);
	drop(place.dir);
	return length;
}

/* Writes the rest of `in` with read(2) and write(2). */
static int copy_plainly(int in, int out)
{
	enum { SIZE = 128 << 10 };
	char *buffer = malloc(SIZE);
	if (!buffer)
		return -1;
	for (;;) {
		ssize_t have = read(in, buffer, SIZE), done = 0;
		if (have == -1 && errno == EINTR)
			continue;
		while (done < have) {
			ssize_t wrote = write(out, buffer + done, (size_t)(have - done));
			if (wrote == -1 && errno != EINTR)
				have = -1;
			else if (wrote > 0)
				done += wrote;
		}
		if (have <= 0) {
			int error = errno;
			free(buffer);
			errno = error;
			return (int)have;
		}
	}
}

/* Writes the rest of `in` in the cheapest way that the two descriptors permit. Each way continues
 * where the one before stopped. */
static int copy(int in, int out)
{
	const size_t most = 1 << 30;
	ssize_t done;
	do
		done = copy_file_range(in, NULL, out, NULL, most, 0);
	while (done > 0 || (done == -1 && errno == EINTR));
	if (done == -1 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO))
		return -1;
	do
		done = sendfile(out, in, NULL, most);
	while (done > 0 || (done == -1 && errno == EINTR));
	if (done == -1 && errno != EINVAL && errno != ENOSYS && errno != EOVERFLOW)
		return -1;
	return copy_plainly(in, out);
}

EXPORT int vs_recover(int dirfd, const char *path, uint64_t n, int out_fd)
{
	struct stat st;
	int in = vs_open(dirfd, path, n);
	if (in == -1)
		return -1;
	int result = fstat(in, &st);
	if (result == 0)
		result = S_ISREG(st.st_mode) ? copy(in, out_fd) : fail(S_ISDIR(st.st_mode) ? EISDIR : EINVAL);
	drop(in);
	return result;
}

EXPORT int vs_rename(int dirfd, const char *path, int new_dirfd, const char *new_path)
{
	struct place from, to;
	if (find_place(dirfd, path, &from) == -1)
		return -1;
	int result = find_place(new_dirfd, new_path, &to);
	if (result == 0) {
		result = vs_rename_at(from.dir, from.name, to.dir, to.name);
		drop(to.dir);
	}
	drop(from.dir);
	return result;
}

static int remove_set(int dirfd, const char *path, bool directory)
{
	struct place place;
	if (find_place(dirfd, path, &place) == -1)
		return -1;
	int result = vs_remove_at(place.dir, place.name, directory);
	drop(place.dir);
	return result;
}

EXPORT int vs_unlink(int dirfd, const char *path)
{
	return remove_set(dirfd, path, false);
}

EXPORT int vs_rmdir(int dirfd, const char *path)
{
	return remove_set(dirfd, path, true);
}

EXPORT int vs_chown(int dirfd, const char *path, uid_t uid, gid_t gid)
{
	struct place place;
	if (find_place(dirfd, path, &place) == -1)
		return -1;
	int result = vs_chown_at(place.dir, place.name, uid, gid);
	drop(place.dir);
	return result;
}

EXPORT int vs_chmod(int dirfd, const char *path, mode_t mode)
{
	struct place place;
	if (find_place(dirfd, path, &place) == -1)
		return -1;
	int result = vs_chmod_at(place.dir, place.name, mode);
	drop(place.dir);
	return result;
}

EXPORT struct vs_names *vs_names_open(int dirfd, const char *path)
{
	int dir = open_directory(dirfd, path);
	if (dir == -1)
		return NULL;
	struct vs_names *names = vs_names_of(dir);
	if (!names)
		drop(dir);
	return names;
}

EXPORT int vs_at(int dirfd, const char *when)
{
	char token[VS_NAME_SIZE], *reply;
	size_t length;
	int fd = -1;
	if (!when || !*when)
		return fail(EINVAL);
	int dir = open_directory(dirfd, ".");
	if (dir == -1)
		return -1;
	if (vs_send(dir, "versionfs.at", &reply, &length, "%n", when) == 0) {
		bool good = vs_parse_token((struct vs_text){reply, reply + length}, token, sizeof token);
		free(reply);
		fd = good ? open_directory(dir, token) : fail(EBADMSG);
	}
	drop(dir);
	return fd;
}
