/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Old versions of files on a versionfs mount: the client interface. Plain C11 and glibc.
 *
 *     cc program.c $(pkg-config --cflags --libs versionfs)
 *
 * A *version set* is a name in a directory with all its versions: the head, which every program
 * sees, and the old versions, which have numbers from 1 upward. A set outlives its head: a removed
 * name keeps its set.
 *
 * Arguments
 * - Each function takes a directory descriptor within the mount, or AT_FDCWD, and a path relative to
 *   it. An absolute path ignores the descriptor. The path's last component names the set. The path
 *   before it must exist now. Descriptors opened with O_PATH work.
 * - To reach a version inside a removed directory, open that directory with vs_open() first, and
 *   pass the new descriptor.
 *
 * Errors
 * Functions that return int return -1 and set errno if they fail, unless stated otherwise. In
 * addition to the errors of openat(2) and malloc(3):
 *
 *     ENOTTY   the directory is not on a versionfs mount
 *     ENOENT   no such set or version
 *     EACCES   the administrator or the file's mode forbids reading this version
 *     EPERM    the administrator or the directory's mode forbids changing old versions
 *     EINVAL   malformed argument; the last component is missing, "." or ".."
 *     EXDEV    vs_rename(): the directories belong to different mounts
 *     EROFS    the mount is read-only
 *     EBADMSG  the server's reply is malformed
 *     EPROTO   the server uses another version of the protocol
 *     ESTALE   the server evicted a long reply; call again
 *
 * Threads
 * The library has no global state. All functions may be called from several threads at once; one
 * iterator (struct vs_names) only from one thread at a time. Nothing is async-signal-safe. All
 * descriptors that the library opens have O_CLOEXEC.
 */
#ifndef VERSIONFS_H
#define VERSIONFS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of a version. */
#define VS_PINNED 1u     /* never discarded: pinned by a user */
#define VS_LANDMARK 2u   /* kept by the landmark rule of the retention policy */
#define VS_UNFINISHED 4u /* still being made, by a file that is open for writing */

/* One old version. Strings belong to the set and are never NULL. */
struct vs_version {
	uint64_t number;
	uint64_t size;   /* of the content, in bytes */
	uint64_t stored; /* space that the version uses, in bytes */
	/* Storage policy: 'f' full, 'c' compressed, 's' sparse, 'd' directory; 'z' sparse and
	 * compressed, 'x' delta without holes, 't' text difference, 'b' content-addressed blocks,
	 * 'l' symbolic link or special file, 'r' renamed away. Servers may add letters. */
	char storage;
	uint32_t flags; /* VS_PINNED ... */
	mode_t mode;    /* permission bits and type (S_IFMT) */
	uid_t uid;
	gid_t gid;
	struct timespec mtime;
	struct timespec born; /* the content was the head from born ... */
	struct timespec died; /* ... until died */
	/* What ended it: write, truncate, unlink, rmdir, rename, replace, chmod, chown, xattr, link,
	 * fallocate or manual; and which user, process, session and program. */
	const char *operation;
	uid_t by_uid;
	pid_t by_pid;
	pid_t by_sid;
	const char *program; /* "" if unknown */
	const char *note;    /* "" if there is none */
};

/* A version set. */
struct vs_set {
	mode_t head;    /* type of the head (S_IFREG, S_IFDIR ...), 0 if it has been removed */
	uint64_t first; /* minimum version number, 0 if there are no versions */
	uint64_t last;  /* maximum version number */
	size_t count;   /* number of elements of versions[] */
	struct vs_version *versions; /* oldest first; numbers may have gaps */
};

/* Version-set stat: stores a new set in *set. Free it with vs_free(). */
int vs_stat(int dirfd, const char *path, struct vs_set **set);

/* Frees a set. NULL is permitted. Preserves errno. */
void vs_free(struct vs_set *set);

/* Fills *st from a version: mode, owner, size, blocks and times. st_ino and st_dev are 0. For the
 * inode number, call fstat(2) on a descriptor of vs_open(). */
void vs_version_stat(const struct vs_version *version, struct stat *st);

/* Opens version n read-only and returns the descriptor. A directory version opens as a directory;
 * the functions of this header work in it. Symbolic links fail with ELOOP: see vs_readlink(). */
int vs_open(int dirfd, const char *path, uint64_t n);

/* Opens the bytes of version n as they are stored. The storage policy says what they mean. */
int vs_open_raw(int dirfd, const char *path, uint64_t n);

/* Reads the target of a version that is a symbolic link, as readlink(2) does: returns its length,
 * truncates it to size, adds no NUL byte. EINVAL if the version is something else. */
ssize_t vs_readlink(int dirfd, const char *path, uint64_t n, char *target, size_t size);

/* Writes the content of version n to out_fd, from out_fd's position onward. Does not truncate
 * out_fd. If it fails, part of the content may have been written. EISDIR if it is a directory. */
int vs_recover(int dirfd, const char *path, uint64_t n, int out_fd);

/* Operations on the head and all versions of a set, atomic with respect to other operations on the
 * directory. vs_rename() also works for sets without a head. */
int vs_rename(int dirfd, const char *path, int new_dirfd, const char *new_path);
int vs_unlink(int dirfd, const char *path);
int vs_rmdir(int dirfd, const char *path);
int vs_chown(int dirfd, const char *path, uid_t uid, gid_t gid); /* -1 keeps the value */
int vs_chmod(int dirfd, const char *path, mode_t mode);

/* One set of a directory, as vs_names_next() reports it. */
struct vs_name {
	const char *name; /* valid until the next call on the iterator */
	mode_t head;
	uint64_t first, last;
	uint64_t count; /* number of versions: less than last - first + 1 if there are gaps */
};

struct vs_names;

/* Begins an iteration over all version sets of a directory, including those of removed names.
 * Returns NULL and sets errno if it fails. Free the iterator with vs_names_close(). */
struct vs_names *vs_names_open(int dirfd, const char *path);

/* Stores the next set in *name. Returns 1, 0 at the end, or -1 with errno. */
int vs_names_next(struct vs_names *names, struct vs_name *name);

void vs_names_close(struct vs_names *names);

/* Opens the directory dirfd as it was at an instant, with everything below it, read-only. `when` is
 * SECONDS or SECONDS.NANOSECONDS since the epoch, or a tag. Returns the descriptor. */
int vs_at(int dirfd, const char *when);

#ifdef __cplusplus
}
#endif

#endif
