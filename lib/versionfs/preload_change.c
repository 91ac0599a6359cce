/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Functions that change names and attributes. In programs such as mv and rm they change the whole
 * version set (see preload_real.c), in others the head. Old versions can't be changed: EROFS. */
#define _GNU_SOURCE
#include "preload.h"

/* The last component of a path, and its directory. */
struct target {
	int dir;
	bool slash; /* a slash follows the component */
	char name[VS_NAME_SIZE];
};

/* Opens the directory of a path if it is on versionfs. Preserves errno if it returns false. */
static bool find_target(int dirfd, const char *path, struct target *target)
{
	char parent[PATH_MAX];
	int saved = errno;
	size_t end = strlen(path), start, whole = end;
	while (end > 0 && path[end - 1] == '/')
		end--;
	for (start = end; start > 0 && path[start - 1] != '/';)
		start--;
	if (end == start || end - start >= sizeof target->name || start >= sizeof parent)
		return false;
	memcpy(target->name, path + start, end - start);
	target->name[end - start] = '\0';
	target->slash = end != whole;
	if (strcmp(target->name, ".") == 0 || strcmp(target->name, "..") == 0)
		return false;
	memcpy(parent, path, start);
	strcpy(parent + start, start ? "" : ".");
	target->dir = openat(dirfd, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (target->dir != -1 && on_versionfs(target->dir))
		return true;
	if (target->dir != -1)
		close(target->dir);
	errno = saved;
	return false;
}

static void close_target(struct target *target)
{
	int saved = errno;
	close(target->dir);
	errno = saved;
}

/* Returns whether a failed command leaves the decision to the ordinary operation: the layer does not
 * know the command, there is no set, or whole sets may not be changed. */
static bool is_ordinary(int error)
{
	return error == ENOTTY || error == EOPNOTSUPP || error == ENOENT || error == EPERM || error == EACCES;
}

/* Returns 1 if the ordinary operation has to be called, otherwise the result. */
static int conclude(int result, int saved)
{
	if (result == 0 || is_ordinary(errno)) {
		result = result == 0 ? 0 : 1;
		errno = saved;
	}
	return result;
}

static int remove_set(int dirfd, const char *path, bool directory)
{
	int saved = errno;
	struct target target;
	if (!program_changes(CHANGE_REMOVE) || !find_target(dirfd, path, &target))
		return 1;
	int result = target.slash && !directory ? 1 : vs_remove_at(target.dir, target.name, directory);
	close_target(&target);
	return result == 1 ? 1 : conclude(result, saved);
}

/* Body of a function that changes: returns the real result, refuses to change a version, or returns
 * the result of an expression that uses `spot`, for a path below an old directory. */
#define CHANGE_OR_REFUSE(dirfd, path, real, below) \
	int saved = errno, result = real; \
	if (result != -1 || !is_absent(errno) || !names_version(path)) \
		return result; \
	struct spot spot; \
	if (!spot_find(dirfd, path, &spot)) \
		return result; \
	if (spot.is_version) \
		errno = EROFS; \
	else \
		result = below; \
	spot_close(&spot); \
	RETURN(result, saved)

EXPORT int unlinkat(int dirfd, const char *path, int flags)
{
	int done = remove_set(dirfd, path, (flags & AT_REMOVEDIR) != 0);
	if (done != 1)
		return done;
	CHANGE_OR_REFUSE(dirfd, path, REAL(unlinkat)(dirfd, path, flags),
	                 REAL(unlinkat)(spot.dir, spot.path, flags));
}

EXPORT int unlink(const char *path)
{
	return unlinkat(AT_FDCWD, path, 0);
}

EXPORT int rmdir(const char *path)
{
	return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

EXPORT int remove(const char *path)
{
	int saved = errno, result = unlinkat(AT_FDCWD, path, 0);
	if (result == -1 && errno == EISDIR) {
		result = unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
		if (result == 0)
			errno = saved;
	}
	return result;
}

/* Renames between two directories on versionfs. */
static int rename_found(struct target *from, struct target *to, unsigned flags)
{
	struct stat st;
	/* Only names of directories can end with a slash. */
	if ((from->slash || to->slash) &&
	    (REAL(fstatat)(from->dir, from->name, &st, AT_SYMLINK_NOFOLLOW) == -1 || !S_ISDIR(st.st_mode)))
		return 1;
	bool taken = REAL(fstatat)(to->dir, to->name, &st, AT_SYMLINK_NOFOLLOW) == 0;
	if (taken && (flags & RENAME_NOREPLACE)) {
		errno = EEXIST;
		return -1;
	}
	int result = vs_rename_at(from->dir, from->name, to->dir, to->name);
	/* The new name has a history of its own, which the server does not replace. */
	return result == -1 && (errno == EEXIST || errno == EXDEV) ? 1 : result;
}

static int rename_set(int old_dir, const char *old_path, int new_dir, const char *new_path, unsigned flags)
{
	int saved = errno, result = 1;
	struct target from, to;
	if (!program_changes(CHANGE_RENAME) || (flags & ~(unsigned)RENAME_NOREPLACE) ||
	    !find_target(old_dir, old_path, &from))
		return 1;
	if (find_target(new_dir, new_path, &to)) {
		result = rename_found(&from, &to, flags);
		close_target(&to);
	}
	close_target(&from);
	if (result == 1)
		errno = saved;
	return result == 1 ? 1 : conclude(result, saved);
}

/* Calls the real function that old programs call, so that old kernels without renameat2(2) work. */
static int rename_really(int old_dir, const char *old_path, int new_dir, const char *new_path,
                         unsigned flags)
{
	return flags ? REAL(renameat2)(old_dir, old_path, new_dir, new_path, flags)
	             : REAL(renameat)(old_dir, old_path, new_dir, new_path);
}

/* Refuses to rename from or to an old version, after the ordinary rename failed. */
static int rename_below(int old_dir, const char *old_path, int new_dir, const char *new_path,
                        unsigned flags)
{
	struct spot from, to;
	bool from_found = names_version(old_path) && spot_find(old_dir, old_path, &from);
	bool to_found = names_version(new_path) && spot_find(new_dir, new_path, &to);
	int result = -1;
	if ((from_found && from.is_version) || (to_found && to.is_version))
		errno = EROFS;
	else if (from_found || to_found)
		result = rename_really(from_found ? from.dir : old_dir, from_found ? from.path : old_path,
		                       to_found ? to.dir : new_dir, to_found ? to.path : new_path, flags);
	if (from_found)
		spot_close(&from);
	if (to_found)
		spot_close(&to);
	return result;
}

EXPORT int renameat2(int old_dir, const char *old_path, int new_dir, const char *new_path, unsigned flags)
{
	int saved = errno;
	if (is_old_version(new_dir, new_path)) {
		errno = EROFS;
		return -1;
	}
	int result = rename_set(old_dir, old_path, new_dir, new_path, flags);
	if (result != 1)
		return result;
	result = rename_really(old_dir, old_path, new_dir, new_path, flags);
	if (result == -1 && is_absent(errno) && (names_version(old_path) || names_version(new_path)))
		result = rename_below(old_dir, old_path, new_dir, new_path, flags);
	RETURN(result, saved);
}

EXPORT int renameat(int old_dir, const char *old_path, int new_dir, const char *new_path)
{
	return renameat2(old_dir, old_path, new_dir, new_path, 0);
}

EXPORT int rename(const char *old_path, const char *new_path)
{
	return renameat2(AT_FDCWD, old_path, AT_FDCWD, new_path, 0);
}

/* Finds the set of a path whose attributes change; not if that follows a symbolic link. */
static bool find_object(int dirfd, const char *path, bool follow, struct target *target)
{
	struct stat st;
	int saved = errno;
	if (!path || !*path || !find_target(dirfd, path, target))
		return false;
	if (REAL(fstatat)(target->dir, target->name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	    !(S_ISLNK(st.st_mode) && (follow || target->slash)))
		return true;
	close_target(target);
	errno = saved;
	return false;
}

static int chmod_set(int dirfd, const char *path, mode_t mode, int flags)
{
	int saved = errno;
	struct target target;
	if (!program_changes(CHANGE_MODE) ||
	    !find_object(dirfd, path, !(flags & AT_SYMLINK_NOFOLLOW), &target))
		return 1;
	int result = vs_chmod_at(target.dir, target.name, mode);
	close_target(&target);
	return conclude(result, saved);
}

EXPORT int fchmodat(int dirfd, const char *path, mode_t mode, int flags)
{
	int done = chmod_set(dirfd, path, mode, flags);
	if (done != 1)
		return done;
	CHANGE_OR_REFUSE(dirfd, path, REAL(fchmodat)(dirfd, path, mode, flags),
	                 REAL(fchmodat)(spot.dir, spot.path, mode, flags));
}

EXPORT int chmod(const char *path, mode_t mode)
{
	return fchmodat(AT_FDCWD, path, mode, 0);
}

static int chown_set(int dirfd, const char *path, uid_t uid, gid_t gid, int flags)
{
	int saved = errno;
	struct target target;
	if (!program_changes(CHANGE_OWNER) || (flags & AT_EMPTY_PATH) ||
	    !find_object(dirfd, path, !(flags & AT_SYMLINK_NOFOLLOW), &target))
		return 1;
	int result = vs_chown_at(target.dir, target.name, uid, gid);
	close_target(&target);
	return conclude(result, saved);
}

EXPORT int fchownat(int dirfd, const char *path, uid_t uid, gid_t gid, int flags)
{
	int done = chown_set(dirfd, path, uid, gid, flags);
	if (done != 1)
		return done;
	CHANGE_OR_REFUSE(dirfd, path, REAL(fchownat)(dirfd, path, uid, gid, flags),
	                 REAL(fchownat)(spot.dir, spot.path, uid, gid, flags));
}

EXPORT int chown(const char *path, uid_t uid, gid_t gid)
{
	return fchownat(AT_FDCWD, path, uid, gid, 0);
}

EXPORT int lchown(const char *path, uid_t uid, gid_t gid)
{
	return fchownat(AT_FDCWD, path, uid, gid, AT_SYMLINK_NOFOLLOW);
}

EXPORT int truncate(const char *path, off_t size)
{
	char proc[PATH_MAX];
	CHANGE_OR_REFUSE(AT_FDCWD, path, REAL(truncate)(path, size),
	                 REAL(truncate)(spot_proc_path(&spot, proc), size));
}
ALIAS(truncate64, truncate);

EXPORT int utimensat(int dirfd, const char *path, const struct timespec times[2], int flags)
{
	CHANGE_OR_REFUSE(dirfd, path, REAL(utimensat)(dirfd, path, times, flags),
	                 REAL(utimensat)(spot.dir, spot.path, times, flags));
}

EXPORT int setxattr(const char *path, const char *name, const void *value, size_t size, int flags)
{
	char proc[PATH_MAX];
	CHANGE_OR_REFUSE(AT_FDCWD, path, REAL(setxattr)(path, name, value, size, flags),
	                 REAL(setxattr)(spot_proc_path(&spot, proc), name, value, size, flags));
}

EXPORT int lsetxattr(const char *path, const char *name, const void *value, size_t size, int flags)
{
	char proc[PATH_MAX];
	CHANGE_OR_REFUSE(AT_FDCWD, path, REAL(lsetxattr)(path, name, value, size, flags),
	                 REAL(lsetxattr)(spot_proc_path(&spot, proc), name, value, size, flags));
}

/* Refuses to create a file with the name of an old version: it would hide the version. */
#define CREATE(dirfd, path, real, below) \
	if (is_old_version(dirfd, path)) { \
		errno = EEXIST; \
		return -1; \
	} \
	CHANGE_OR_REFUSE(dirfd, path, real, below)

EXPORT int mkdirat(int dirfd, const char *path, mode_t mode)
{
	CREATE(dirfd, path, REAL(mkdirat)(dirfd, path, mode), REAL(mkdirat)(spot.dir, spot.path, mode));
}

EXPORT int mkdir(const char *path, mode_t mode)
{
	return mkdirat(AT_FDCWD, path, mode);
}

EXPORT int symlinkat(const char *target, int dirfd, const char *path)
{
	CREATE(dirfd, path, REAL(symlinkat)(target, dirfd, path),
	       REAL(symlinkat)(target, spot.dir, spot.path));
}

EXPORT int symlink(const char *target, const char *path)
{
	return symlinkat(target, AT_FDCWD, path);
}

EXPORT int linkat(int old_dir, const char *old_path, int dirfd, const char *path, int flags)
{
	if (is_old_version(dirfd, path)) {
		errno = EEXIST;
		return -1;
	}
	int result = REAL(linkat)(old_dir, old_path, dirfd, path, flags);
	/* An old version is not linked: programs then copy it. */
	if (result == -1 && is_absent(errno) && is_old_version(old_dir, old_path))
		errno = EXDEV;
	return result;
}

EXPORT int link(const char *old_path, const char *path)
{
	return linkat(AT_FDCWD, old_path, AT_FDCWD, path, 0);
}
