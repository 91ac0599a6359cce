/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The working directory. The kernel knows an old directory by the name of its token, which soon
 * expires. So the library remembers the path by which the program entered it. */
#define _GNU_SOURCE
#include "preload.h"

#include <pthread.h>
#include <stdatomic.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool entered;
/* The last old directory that was entered. */
static struct {
	char shown[PATH_MAX]; /* as the program named it */
	char real[PATH_MAX];  /* as the kernel names it, or "" */
	dev_t dev;
	ino_t ino;
} old;

void cwd_lock(void)
{
	pthread_mutex_lock(&lock);
}

void cwd_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

char *cwd_translate(char *path, size_t size)
{
	char translated[2 * PATH_MAX];
	if (!atomic_load_explicit(&entered, memory_order_acquire))
		return path;
	translated[0] = '\0';
	cwd_lock();
	size_t length = strlen(old.real);
	if (length && strncmp(path, old.real, length) == 0 && (path[length] == '/' || path[length] == '\0'))
		snprintf(translated, sizeof translated, "%s%s", old.shown, path + length);
	cwd_unlock();
	if (translated[0] && strlen(translated) < size)
		strcpy(path, translated);
	return path;
}

/* Appends the components of `rest` to an absolute path, without resolving symbolic links. */
static bool append_components(char path[PATH_MAX], const char *rest)
{
	while (*rest) {
		size_t length = strcspn(rest, "/"), used = strlen(path);
		if (length == 2 && memcmp(rest, "..", 2) == 0) {
			char *slash = strrchr(path, '/');
			slash[slash == path] = '\0';
		} else if (length != 0 && !(length == 1 && *rest == '.')) {
			if (used + length + 2 > PATH_MAX)
				return false;
			if (used > 1)
				path[used++] = '/';
			memcpy(path + used, rest, length);
			path[used + length] = '\0';
		}
		rest += length + (rest[length] == '/');
	}
	return true;
}

/* Writes the absolute form of a path that names a spot. */
static bool spot_absolute(const struct spot *spot, const char *path, char absolute[PATH_MAX])
{
	char parent[PATH_MAX];
	size_t length = spot->prefix - 1;
	if (length >= sizeof parent)
		return false;
	memcpy(parent, path, length);
	strcpy(parent + length, length ? "" : ".");
	if (!REAL(realpath)(parent, absolute))
		return false;
	cwd_translate(absolute, PATH_MAX);
	return append_components(absolute, path + length);
}

/* Remembers the working directory under the path by which it was entered. */
static void remember(const char *shown)
{
	struct stat st;
	char real[PATH_MAX];
	if (REAL(stat)(".", &st) == -1)
		return;
	if (!REAL(getcwd)(real, sizeof real))
		real[0] = '\0';
	cwd_lock();
	strcpy(old.shown, shown);
	strcpy(old.real, real);
	old.dev = st.st_dev;
	old.ino = st.st_ino;
	cwd_unlock();
	atomic_store_explicit(&entered, true, memory_order_release);
}

EXPORT int chdir(const char *path)
{
	int saved = errno, result = REAL(chdir)(path);
	char shown[PATH_MAX];
	struct spot spot;
	if (result == 0 || !is_absent(errno) || !names_version(path) || !spot_find(AT_FDCWD, path, &spot))
		return result;
	bool known = spot_absolute(&spot, path, shown);
	int fd = REAL(openat)(spot.dir, spot.path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd != -1) {
		result = fchdir(fd);
		int error = errno;
		close(fd);
		errno = error;
	}
	spot_close(&spot);
	if (result == 0 && known)
		remember(shown);
	RETURN(result, saved);
}

/* Writes the remembered path if it is the working directory's. */
static bool is_old_directory(char path[PATH_MAX])
{
	struct stat st;
	if (!atomic_load_explicit(&entered, memory_order_acquire) || REAL(stat)(".", &st) == -1)
		return false;
	cwd_lock();
	bool same = st.st_dev == old.dev && st.st_ino == old.ino;
	if (same)
		strcpy(path, old.shown);
	cwd_unlock();
	return same;
}

EXPORT char *getcwd(char *buffer, size_t size)
{
	char path[PATH_MAX];
	int saved = errno;
	if (!atomic_load_explicit(&entered, memory_order_acquire))
		return REAL(getcwd)(buffer, size);
	if (!is_old_directory(path)) {
		if (!REAL(getcwd)(path, sizeof path))
			return REAL(getcwd)(buffer, size);
		cwd_translate(path, sizeof path);
	}
	errno = saved;
	if (!buffer && size == 0)
		return strdup(path);
	if (size <= strlen(path)) {
		errno = size == 0 ? EINVAL : ERANGE;
		return NULL;
	}
	if (!buffer && !(buffer = malloc(size)))
		return NULL;
	return strcpy(buffer, path);
}

/* Returns the absolute form of a path with a version, or NULL. */
static char *version_realpath(const char *path, char *resolved)
{
	char absolute[PATH_MAX];
	struct spot spot;
	if (!spot_find(AT_FDCWD, path, &spot))
		return NULL;
	bool known = (spot.is_version && !spot.as_directory) ||
	             REAL(faccessat)(spot.dir, spot.path, F_OK, 0) == 0;
	known = known && spot_absolute(&spot, path, absolute);
	spot_close(&spot);
	if (!known)
		return NULL;
	return resolved ? strcpy(resolved, absolute) : strdup(absolute);
}

EXPORT char *realpath(const char *path, char *resolved)
{
	int saved = errno;
	char *result = REAL(realpath)(path, resolved);
	if (!result && is_absent(errno) && names_version(path)) {
		result = version_realpath(path, resolved);
		if (result)
			errno = saved;
		return result;
	}
	if (!result || !atomic_load_explicit(&entered, memory_order_acquire))
		return result;
	char absolute[PATH_MAX];
	if (strlen(result) >= sizeof absolute)
		return result;
	cwd_translate(strcpy(absolute, result), sizeof absolute);
	if (strcmp(absolute, result) == 0)
		return result;
	if (resolved)
		return strcpy(resolved, absolute);
	free(result);
	return strdup(absolute);
}

char *__realpath_chk(const char *path, char *resolved, size_t size);

EXPORT char *__realpath_chk(const char *path, char *resolved, size_t size)
{
	if (size < PATH_MAX)
		abort();
	return realpath(path, resolved);
}

EXPORT char *canonicalize_file_name(const char *path)
{
	return realpath(path, NULL);
}
