/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "preload.h"

#include "channel.h"

#include <pthread.h>
#include <time.h>

#define FUSE_MAGIC 0x65735546
/* How long an answer about a device holds. Device numbers are used again after an unmount. */
#define KEEP_SECONDS 2

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct device {
	dev_t device;
	time_t asked;
	bool is_versionfs;
} devices[32];

void devices_lock(void)
{
	pthread_mutex_lock(&lock);
}

void devices_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

/* Asks the file system. */
static bool has_versions(int dir)
{
	struct statfs fs;
	char *reply;
	size_t length;
	if (fstatfs(dir, &fs) == -1 || fs.f_type != FUSE_MAGIC)
		return false;
	if (vs_call(dir, "server.commands", NULL, 0, &reply, &length) == -1)
		return false;
	bool known = memmem(reply, length, "versionfs.names", strlen("versionfs.names")) != NULL;
	free(reply);
	return known;
}

bool on_versionfs(int dir)
{
	int saved = errno;
	struct stat st;
	struct timespec now;
	bool answer = false;
	/* A descriptor's own fstat(2) is not replaced. */
	if (fstat(dir, &st) == 0 && S_ISDIR(st.st_mode)) {
		struct device *entry = &devices[st.st_dev % (sizeof devices / sizeof *devices)];
		clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
		/* asked is 0 in an empty entry, so the clock is read as at least 1 + KEEP_SECONDS. */
		now.tv_sec += 1 + KEEP_SECONDS;
		devices_lock();
		bool fresh = entry->device == st.st_dev && now.tv_sec - entry->asked <= KEEP_SECONDS;
		answer = entry->is_versionfs;
		devices_unlock();
		if (!fresh) {
			answer = has_versions(dir);
			devices_lock();
			*entry = (struct device){st.st_dev, now.tv_sec, answer};
			devices_unlock();
		}
	}
	errno = saved;
	return answer;
}

/* A component of a path that ends like a version. */
struct component {
	const char *start;
	const char *end;
	const char *semicolon;
};

/* Finds the first such component at or after `at`. */
static bool next_component(const char *at, struct component *component)
{
	while (*at) {
		const char *end = strchrnul(at, '/');
		const char *semicolon = memrchr(at, ';', (size_t)(end - at));
		if (semicolon && semicolon != at && semicolon + 1 != end && semicolon[1] != '0' &&
		    end - semicolon <= 19 &&
		    strspn(semicolon + 1, "0123456789") == (size_t)(end - semicolon - 1)) {
			*component = (struct component){at, end, semicolon};
			return true;
		}
		at = end + (*end == '/');
	}
	return false;
}

/* Opens the part of a path from `from` up to `to` as a directory; nothing is the directory itself. */
static int open_part(int dir, const char *from, const char *to, int flags)
{
	char part[PATH_MAX];
	size_t length = (size_t)(to - from);
	if (length >= sizeof part)
		return -1;
	memcpy(part, from, length);
	strcpy(part + length, length ? "" : ".");
	return REAL(openat)(dir, part, flags | O_DIRECTORY | O_CLOEXEC);
}

/* Returns 1 if the part of a path exists as it is written, 0 if not, or -1 for other errors. */
static int exists(int dir, const char *from, const char *to)
{
	char part[PATH_MAX];
	struct stat st;
	size_t length = (size_t)(to - from);
	if (length >= sizeof part)
		return 0;
	memcpy(part, from, length);
	part[length] = '\0';
	if (REAL(fstatat)(dir, part, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return 1;
	return is_absent(errno) ? 0 : -1;
}

/* Requests the version that a component of `parent` names. On success, spot has its name and number,
 * and its token. */
static bool request(int parent, const struct component *component, struct spot *spot)
{
	size_t length = (size_t)(component->semicolon - component->start);
	struct vs_text digits = {component->semicolon + 1, component->end};
	if (length >= sizeof spot->name || !vs_number(digits, VS_MAX_NUMBER, &spot->number))
		return false;
	memcpy(spot->name, component->start, length);
	spot->name[length] = '\0';
	return vs_token(parent, spot->name, spot->number, "", spot->token) == 0;
}

/* Opens the directory that a component in the middle of a path names, and makes it the new start. */
static bool enter(int *dir, bool *owned, int parent, struct spot *spot)
{
	int fd = REAL(openat)(parent, spot->token, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (*owned)
		close(*dir);
	*owned = fd != -1;
	*dir = fd;
	return fd != -1;
}

/* Handles one component that does not exist as it is written. Returns 1 if the spot is found, 0 to
 * continue with what follows, -1 if it is no version. */
static int step(int *dir, bool *owned, const char **base, const struct component *component,
                struct spot *spot)
{
	const char *rest = component->end + strspn(component->end, "/");
	int parent = open_part(*dir, *base, component->start, O_RDONLY);
	if (parent == -1)
		return -1;
	if (!on_versionfs(parent) || !request(parent, component, spot)) {
		int error = errno;
		close(parent);
		errno = error;
		return -1;
	}
	if (*rest == '\0') {
		if (*owned)
			close(*dir);
		spot->dir = parent;
		spot->is_version = true;
		spot->as_directory = rest != component->end;
		if (spot->as_directory)
			strcat(spot->token, "/");
		spot->path = spot->token;
		return 1;
	}
	bool entered = enter(dir, owned, parent, spot);
	int error = errno;
	close(parent);
	errno = error;
	*base = rest;
	return entered ? 0 : -1;
}

bool spot_find(int dirfd, const char *path, struct spot *spot)
{
	int saved = errno, dir = dirfd;
	bool owned = false;
	const char *base = path, *at = path;
	struct component component;
	spot->is_version = spot->as_directory = false;
	spot->prefix = 0;
	while (next_component(at, &component)) {
		int known = exists(dir, base, component.end);
		int found = known == 0 ? step(&dir, &owned, &base, &component, spot) : known == 1 ? 0 : -1;
		if (known == 0 && spot->prefix == 0)
			spot->prefix = (size_t)(component.start - path) + 1;
		if (found == 1)
			return true;
		if (found == -1) {
			/* Keep the error of a server that knows the version and refuses it. */
			int error = errno == EACCES || errno == EPERM || errno == EIO || errno == ENOTDIR ? errno : saved;
			if (owned)
				close(dir);
			errno = error;
			return false;
		}
		at = known == 1 ? component.end : base;
	}
	errno = saved;
	if (!owned)
		return false;
	spot->dir = dir;
	spot->path = base;
	return true;
}

void spot_close(struct spot *spot)
{
	int saved = errno;
	close(spot->dir);
	errno = saved;
}

const char *spot_proc_path(const struct spot *spot, char path[PATH_MAX])
{
	int length = snprintf(path, PATH_MAX, "/proc/self/fd/%d/%s", spot->dir, spot->path);
	return length < PATH_MAX ? path : "";
}

bool is_old_version(int dirfd, const char *path)
{
	int saved = errno;
	struct spot spot;
	bool is_version = names_version(path) && spot_find(dirfd, path, &spot);
	if (is_version) {
		spot_close(&spot);
		is_version = spot.is_version;
	}
	errno = saved;
	return is_version;
}
