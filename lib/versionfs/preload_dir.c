/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Listings. After the entries of the file system, a listing of a directory on versionfs has an entry
 * `NAME;N` for each old version, of removed names too. */
#define _GNU_SOURCE
#include "preload.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>

/* Positions among the added entries are negative: the kernel's positions are not. */
#define FIRST_POSITION LONG_MIN

/* Names, each with a NUL byte, in one buffer. */
struct strings {
	char *bytes;
	size_t used, size;
	size_t *offsets;
	size_t count, room;
};

struct listing {
	struct listing *next;
	DIR *dir;
	pthread_mutex_t lock;
	struct strings real;  /* real entries with names like those of versions */
	struct strings added; /* entries that the library adds */
	bool adding;          /* the real entries have been read */
	size_t position;      /* index of the next added entry */
	struct dirent entry;
};

#define BUCKETS 64
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct listing *buckets[BUCKETS];
/* Without listings, readdir() takes no lock. */
static atomic_size_t listings;

void directories_lock(void)
{
	pthread_mutex_lock(&lock);
}

void directories_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

static struct listing **bucket_of(DIR *dir)
{
	return &buckets[((uintptr_t)dir >> 5) % BUCKETS];
}

/* Finds the listing of a stream; with `take`, removes it. */
static struct listing *find(DIR *dir, bool take)
{
	struct listing *found = NULL;
	if (atomic_load_explicit(&listings, memory_order_acquire) == 0)
		return NULL;
	directories_lock();
	for (struct listing **at = bucket_of(dir); *at; at = &(*at)->next) {
		if ((*at)->dir == dir) {
			found = *at;
			if (take) {
				*at = found->next;
				atomic_fetch_sub(&listings, 1);
			}
			break;
		}
	}
	directories_unlock();
	return found;
}

static void clear(struct strings *strings)
{
	free(strings->bytes);
	free(strings->offsets);
	*strings = (struct strings){0};
}

static bool append(struct strings *strings, const char *string)
{
	size_t length = strlen(string) + 1;
	if (strings->count == strings->room) {
		size_t room = strings->room ? 2 * strings->room : 16;
		size_t *offsets = reallocarray(strings->offsets, room, sizeof *offsets);
		if (!offsets)
			return false;
		strings->offsets = offsets;
		strings->room = room;
	}
	if (strings->size - strings->used < length) {
		size_t size = 2 * strings->size + length + 256;
		char *bytes = realloc(strings->bytes, size);
		if (!bytes)
			return false;
		strings->bytes = bytes;
		strings->size = size;
	}
	memcpy(strings->bytes + strings->used, string, length);
	strings->offsets[strings->count++] = strings->used;
	strings->used += length;
	return true;
}

static bool contains(const struct strings *strings, const char *string)
{
	for (size_t i = 0; i < strings->count; i++) {
		if (strcmp(strings->bytes + strings->offsets[i], string) == 0)
			return true;
	}
	return false;
}

/* Adds an entry, unless a real file has that name or the name is too long for a struct dirent. */
static bool add_version(struct listing *listing, const char *name, uint64_t number)
{
	char entry[sizeof listing->entry.d_name];
	int length = snprintf(entry, sizeof entry, "%s;%" PRIu64, name, number);
	if (length >= (int)sizeof entry || contains(&listing->real, entry))
		return true;
	return append(&listing->added, entry);
}

/* Adds the versions of a set. */
static bool add_set(struct listing *listing, const struct vs_name *name)
{
	bool good = true;
	if (name->count == 0)
		return true;
	if (name->count == name->last - name->first + 1) {
		for (uint64_t n = name->first; good && n <= name->last; n++)
			good = add_version(listing, name->name, n);
		return good;
	}
	/* The numbers have gaps. */
	struct vs_set *set;
	if (vs_list(dirfd(listing->dir), name->name, 0, &set) == -1)
		return true;
	for (size_t i = 0; good && i < set->count; i++)
		good = add_version(listing, name->name, set->versions[i].number);
	free(set);
	return good;
}

/* Asks for the versions, at the end of the real entries. A failure adds none: users who may not read
 * old versions get the ordinary listing. */
static void add_versions(struct listing *listing)
{
	int saved = errno, fd = fcntl(dirfd(listing->dir), F_DUPFD_CLOEXEC, 3);
	struct vs_name name;
	clear(&listing->added);
	struct vs_names *names = fd == -1 ? NULL : vs_names_of(fd);
	if (names) {
		while (vs_names_next(names, &name) == 1 && add_set(listing, &name))
			;
		vs_names_close(names);
	} else if (fd != -1) {
		close(fd);
	}
	listing->adding = true;
	listing->position = 0;
	errno = saved;
}

/* Returns the next added entry, or NULL at the end. */
static struct dirent *next_added(struct listing *listing)
{
	struct dirent *entry = &listing->entry;
	if (listing->position >= listing->added.count)
		return NULL;
	const char *name = listing->added.bytes + listing->added.offsets[listing->position++];
	memset(entry, 0, sizeof *entry);
	strcpy(entry->d_name, name);
	entry->d_off = FIRST_POSITION + (long)listing->position;
	entry->d_reclen = sizeof *entry;
	/* A set can have versions of several types. */
	entry->d_type = DT_UNKNOWN;
	/* Any number but 0, which marks a removed entry. FNV-1a. */
	uint64_t hash = 0xcbf29ce484222325;
	for (const char *at = name; *at; at++)
		hash = (hash ^ (unsigned char)*at) * 0x100000001b3;
	entry->d_ino = hash | 1;
	return entry;
}

/* Adds a listing to a new stream, if it is of a directory on versionfs. */
static DIR *attach(DIR *dir)
{
	int saved = errno;
	/* names_version() is false for all paths if the library is inactive. */
	if (!dir || program_changes_any() || !names_version("a;1") || !on_versionfs(dirfd(dir)))
		return dir;
	struct listing *listing = calloc(1, sizeof *listing);
	if (listing) {
		listing->dir = dir;
		pthread_mutex_init(&listing->lock, NULL);
		directories_lock();
		listing->next = *bucket_of(dir);
		*bucket_of(dir) = listing;
		atomic_fetch_add_explicit(&listings, 1, memory_order_release);
		directories_unlock();
	}
	errno = saved;
	return dir;
}

EXPORT DIR *opendir(const char *path)
{
	int saved = errno;
	struct spot spot;
	DIR *dir = REAL(opendir)(path);
	if (dir || !is_absent(errno) || !names_version(path) || !spot_find(AT_FDCWD, path, &spot))
		return attach(dir);
	int fd = REAL(openat)(spot.dir, spot.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	spot_close(&spot);
	if (fd == -1)
		return NULL;
	dir = REAL(fdopendir)(fd);
	if (!dir) {
		int error = errno;
		close(fd);
		errno = error;
		return NULL;
	}
	errno = saved;
	return attach(dir);
}

EXPORT DIR *fdopendir(int fd)
{
	return attach(REAL(fdopendir)(fd));
}

EXPORT int closedir(DIR *dir)
{
	struct listing *listing = find(dir, true);
	if (listing) {
		int saved = errno;
		clear(&listing->real);
		clear(&listing->added);
		pthread_mutex_destroy(&listing->lock);
		free(listing);
		errno = saved;
	}
	return REAL(closedir)(dir);
}

/* Remembers a real entry that has the name of a version. */
static void note_real(struct listing *listing, const char *name)
{
	if (names_version(name) && !contains(&listing->real, name))
		append(&listing->real, name);
}

EXPORT struct dirent *readdir(DIR *dir)
{
	struct listing *listing = find(dir, false);
	if (!listing)
		return REAL(readdir)(dir);
	struct dirent *entry = NULL;
	pthread_mutex_lock(&listing->lock);
	if (!listing->adding) {
		int saved = errno;
		errno = 0;
		entry = REAL(readdir)(dir);
		bool failed = errno != 0;
		if (entry || !failed)
			errno = saved;
		if (entry)
			note_real(listing, entry->d_name);
		else if (!failed)
			add_versions(listing);
	}
	if (listing->adding)
		entry = next_added(listing);
	pthread_mutex_unlock(&listing->lock);
	return entry;
}
ALIAS(readdir64, readdir);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
EXPORT int readdir_r(DIR *dir, struct dirent *entry, struct dirent **result)
{
	struct listing *listing = find(dir, false);
	int error = 0;
	if (!listing)
		return REAL(readdir_r)(dir, entry, result);
	*result = NULL;
	pthread_mutex_lock(&listing->lock);
	if (!listing->adding) {
		error = REAL(readdir_r)(dir, entry, result);
		if (*result)
			note_real(listing, entry->d_name);
		else if (error == 0)
			add_versions(listing);
	}
	if (listing->adding) {
		struct dirent *added = next_added(listing);
		if (added) {
			memcpy(entry, added, sizeof *entry);
			*result = entry;
		}
	}
	pthread_mutex_unlock(&listing->lock);
	return error;
}
ALIAS(readdir64_r, readdir_r);
#pragma GCC diagnostic pop

EXPORT long telldir(DIR *dir)
{
	struct listing *listing = find(dir, false);
	long position = 0;
	if (listing) {
		pthread_mutex_lock(&listing->lock);
		position = listing->adding ? FIRST_POSITION + (long)listing->position : 0;
		pthread_mutex_unlock(&listing->lock);
	}
	return position < 0 ? position : REAL(telldir)(dir);
}

EXPORT void seekdir(DIR *dir, long position)
{
	struct listing *listing = find(dir, false);
	if (!listing) {
		REAL(seekdir)(dir, position);
		return;
	}
	pthread_mutex_lock(&listing->lock);
	if (position >= 0) {
		listing->adding = false;
		REAL(seekdir)(dir, position);
	} else {
		if (!listing->adding)
			add_versions(listing);
		listing->position = (size_t)(position - FIRST_POSITION);
	}
	pthread_mutex_unlock(&listing->lock);
}

EXPORT void rewinddir(DIR *dir)
{
	struct listing *listing = find(dir, false);
	if (listing) {
		pthread_mutex_lock(&listing->lock);
		listing->adding = false;
		clear(&listing->real);
		pthread_mutex_unlock(&listing->lock);
	}
	REAL(rewinddir)(dir);
}
