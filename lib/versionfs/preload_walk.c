/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * scandir(3), glob(3), ftw(3) and fts(3). glibc's own call its opendir() and lstat() inside, which a
 * preload library can't replace. A walk that begins on versionfs runs here, others in glibc. */
#define _GNU_SOURCE
#include "preload.h"

#include <pthread.h>

/* Returns whether a walk begins in a directory on versionfs. Preserves errno. */
static bool begins_here(int dirfd, const char *path)
{
	int saved = errno;
	if (!names_version("a;1"))
		return false;
	int fd = openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
	bool here = fd != -1 && on_versionfs(fd);
	if (fd != -1)
		close(fd);
	errno = saved;
	return here || (names_version(path) && is_old_version(dirfd, path));
}

typedef int (*filter)(const struct dirent *);
typedef int (*order)(const struct dirent **, const struct dirent **);

/* Frees an array of entries. */
static void free_entries(struct dirent **entries, size_t count)
{
	while (count > 0)
		free(entries[--count]);
	free(entries);
}

/* Adds a copy of an entry to an array. */
static bool add_entry(struct dirent ***entries, size_t *count, const struct dirent *entry)
{
	struct dirent *copy = malloc(sizeof *copy);
	struct dirent **larger = reallocarray(*entries, *count + 1, sizeof *larger);
	if (larger)
		*entries = larger;
	if (!copy || !larger) {
		free(copy);
		return false;
	}
	size_t length = offsetof(struct dirent, d_name) + strlen(entry->d_name) + 1;
	memcpy(copy, entry, length);
	(*entries)[(*count)++] = copy;
	return true;
}

static int scan(DIR *dir, struct dirent ***list, filter wanted)
{
	struct dirent **entries = NULL, *entry;
	size_t count = 0;
	for (;;) {
		errno = 0;
		entry = readdir(dir);
		if (!entry && errno == 0)
			break;
		if (!entry || ((!wanted || wanted(entry)) && !add_entry(&entries, &count, entry))) {
			int error = errno;
			free_entries(entries, count);
			errno = error;
			return -1;
		}
	}
	*list = entries ? entries : calloc(1, sizeof *entries);
	return *list ? (int)count : -1;
}

EXPORT int scandirat(int dirfd, const char *path, struct dirent ***list, filter wanted, order compare)
{
	if (!begins_here(dirfd, path))
		return REAL(scandirat)(dirfd, path, list, wanted, compare);
	int saved = errno, count = -1;
	int fd = openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd == -1 ? NULL : fdopendir(fd);
	if (!dir) {
		if (fd != -1)
			close(fd);
		return -1;
	}
	count = scan(dir, list, wanted);
	int error = errno;
	closedir(dir);
	errno = count == -1 ? error : saved;
	if (count > 1 && compare)
		qsort(*list, (size_t)count, sizeof **list, (int (*)(const void *, const void *))compare);
	return count;
}
ALIAS(scandirat64, scandirat);

EXPORT int scandir(const char *path, struct dirent ***list, filter wanted, order compare)
{
	return scandirat(AT_FDCWD, path, list, wanted, compare);
}
ALIAS(scandir64, scandir);

static void *glob_opendir(const char *path)
{
	return opendir(path);
}

static struct dirent *glob_readdir(void *dir)
{
	return readdir(dir);
}

static void glob_closedir(void *dir)
{
	closedir(dir);
}

static int glob_stat(const char *path, struct stat *st)
{
	return stat(path, st);
}

static int glob_lstat(const char *path, struct stat *st)
{
	return lstat(path, st);
}

EXPORT int glob(const char *pattern, int flags, int (*on_error)(const char *, int), glob_t *result)
{
	if ((flags & GLOB_ALTDIRFUNC) || !names_version("a;1"))
		return REAL(glob)(pattern, flags, on_error, result);
	result->gl_opendir = glob_opendir;
	result->gl_readdir = glob_readdir;
	result->gl_closedir = glob_closedir;
	result->gl_stat = glob_stat;
	result->gl_lstat = glob_lstat;
	int answer = REAL(glob)(pattern, flags | GLOB_ALTDIRFUNC, on_error, result);
	result->gl_flags &= ~GLOB_ALTDIRFUNC;
	return answer;
}
ALIAS(glob64, glob);

/* fts(3) without chdir(2): fts_accpath is the same as fts_path. */
struct walk {
	FTS fts;
	struct walk *next;
	FTSENT *root;     /* parent of the paths given */
	FTSENT *roots;
	FTSENT *children; /* read by fts_children(), not yet by fts_read() */
	FTSENT *current;
	bool begun;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct walk *walks;

void walks_lock(void)
{
	pthread_mutex_lock(&lock);
}

void walks_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

/* Finds a walk of ours; with `take`, removes it from the list. */
static struct walk *find_walk(FTS *fts, bool take)
{
	struct walk *found = NULL;
	walks_lock();
	for (struct walk **at = &walks; *at; at = &(*at)->next) {
		if (&(*at)->fts == fts) {
			found = *at;
			if (take)
				*at = found->next;
			break;
		}
	}
	walks_unlock();
	return found;
}

/* Makes an entry in one block: FTSENT with its name, struct stat, path. */
static FTSENT *new_entry(FTSENT *parent, const char *name)
{
	size_t length = strlen(name), before = parent && parent->fts_level >= 0 ? parent->fts_pathlen : 0;
	bool slash = before && parent->fts_path[before - 1] != '/';
	size_t head = (sizeof(FTSENT) + length + 16) & ~(size_t)15;
	FTSENT *entry = calloc(1, head + sizeof(struct stat) + before + slash + length + 1);
	if (!entry)
		return NULL;
	entry->fts_statp = (struct stat *)((char *)entry + head);
	entry->fts_path = (char *)(entry->fts_statp + 1);
	entry->fts_accpath = entry->fts_path;
	entry->fts_pathlen = (unsigned short)(before + slash + length);
	entry->fts_namelen = (unsigned short)length;
	entry->fts_parent = parent;
	entry->fts_level = parent ? (short)(parent->fts_level + 1) : FTS_ROOTPARENTLEVEL;
	entry->fts_instr = FTS_NOINSTR;
	memcpy(entry->fts_name, name, length + 1);
	if (before)
		memcpy(entry->fts_path, parent->fts_path, before);
	if (slash)
		entry->fts_path[before] = '/';
	memcpy(entry->fts_path + before + slash, name, length + 1);
	return entry;
}

static void free_list(FTSENT *entry)
{
	while (entry) {
		FTSENT *next = entry->fts_link;
		free(entry);
		entry = next;
	}
}

/* Reads the attributes of an entry and returns its fts_info. */
static unsigned short examine(const struct walk *walk, FTSENT *entry, bool follow)
{
	struct stat *st = entry->fts_statp;
	follow = follow || (walk->fts.fts_options & FTS_LOGICAL) ||
	         (entry->fts_level == FTS_ROOTLEVEL && (walk->fts.fts_options & FTS_COMFOLLOW));
	if (follow && stat(entry->fts_path, st) == -1) {
		int error = errno;
		if (lstat(entry->fts_path, st) == 0)
			return FTS_SLNONE;
		entry->fts_errno = error;
		return FTS_NS;
	}
	if (!follow && lstat(entry->fts_path, st) == -1) {
		entry->fts_errno = errno;
		return FTS_NS;
	}
	entry->fts_dev = st->st_dev;
	entry->fts_ino = st->st_ino;
	entry->fts_nlink = st->st_nlink;
	if (!S_ISDIR(st->st_mode))
		return S_ISREG(st->st_mode) ? FTS_F : S_ISLNK(st->st_mode) ? FTS_SL : FTS_DEFAULT;
	if (strcmp(entry->fts_name, ".") == 0 || strcmp(entry->fts_name, "..") == 0)
		return entry->fts_level == FTS_ROOTLEVEL ? FTS_D : FTS_DOT;
	for (FTSENT *up = entry->fts_parent; up->fts_level >= FTS_ROOTLEVEL; up = up->fts_parent) {
		if (up->fts_dev == st->st_dev && up->fts_ino == st->st_ino) {
			entry->fts_cycle = up;
			return FTS_DC;
		}
	}
	return FTS_D;
}

/* Sorts a list with the caller's function. */
static FTSENT *sort(const struct walk *walk, FTSENT *list)
{
	size_t count = 0;
	for (FTSENT *at = list; at; at = at->fts_link)
		count++;
	FTSENT **array = walk->fts.fts_compar && count > 1 ? calloc(count, sizeof *array) : NULL;
	if (!array)
		return list;
	for (size_t i = 0; i < count; i++, list = list->fts_link)
		array[i] = list;
	qsort(array, count, sizeof *array, walk->fts.fts_compar);
	for (size_t i = 0; i + 1 < count; i++)
		array[i]->fts_link = array[i + 1];
	array[count - 1]->fts_link = NULL;
	list = array[0];
	free(array);
	return list;
}

/* Reads the entries of a directory into a list. Returns false with errno. */
static bool read_children(const struct walk *walk, FTSENT *parent, FTSENT **list)
{
	FTSENT *first = NULL, **last = &first;
	struct dirent *entry;
	DIR *dir = opendir(parent->fts_path);
	if (!dir)
		return false;
	while ((errno = 0, entry = readdir(dir))) {
		bool dot = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
		if (dot && !(walk->fts.fts_options & FTS_SEEDOT))
			continue;
		if (!(*last = new_entry(parent, entry->d_name)))
			break;
		(*last)->fts_info = examine(walk, *last, false);
		last = &(*last)->fts_link;
	}
	int error = errno;
	closedir(dir);
	if (error) {
		free_list(first);
		errno = error;
		return false;
	}
	*list = sort(walk, first);
	return true;
}

static FTS *walk_open(char *const *paths, int options, int (*compare)(const FTSENT **, const FTSENT **))
{
	struct walk *walk = calloc(1, sizeof *walk);
	if (!walk || !(walk->root = new_entry(NULL, ""))) {
		free(walk);
		return NULL;
	}
	walk->fts.fts_options = options | FTS_NOCHDIR;
	walk->fts.fts_compar = (int (*)(const void *, const void *))compare;
	FTSENT **last = &walk->roots;
	for (; *paths; paths++) {
		if (!(*last = new_entry(walk->root, *paths))) {
			free_list(walk->roots);
			free(walk->root);
			free(walk);
			return NULL;
		}
		(*last)->fts_info = examine(walk, *last, false);
		last = &(*last)->fts_link;
	}
	walk->roots = sort(walk, walk->roots);
	walks_lock();
	walk->next = walks;
	walks = walk;
	walks_unlock();
	return &walk->fts;
}

/* Descends into the current directory. */
static FTSENT *descend(struct walk *walk, FTSENT *entry, int instruction)
{
	FTSENT *list = walk->children;
	walk->children = NULL;
	bool other = (walk->fts.fts_options & FTS_XDEV) && entry->fts_level > FTS_ROOTLEVEL &&
	             entry->fts_dev != walk->fts.fts_dev;
	if (instruction == FTS_SKIP || other) {
		free_list(list);
		list = NULL;
	} else if (!list && !read_children(walk, entry, &list)) {
		entry->fts_errno = errno;
		entry->fts_info = FTS_DNR;
		return entry;
	}
	if (!list)
		entry->fts_info = FTS_DP;
	return list ? list : entry;
}

/* Moves on from an entry that is done. Returns NULL at the end. */
static FTSENT *advance(FTSENT *entry)
{
	FTSENT *next = entry->fts_link, *parent = entry->fts_parent;
	free(entry);
	if (!next && parent->fts_level >= FTS_ROOTLEVEL) {
		parent->fts_info = FTS_DP;
		return parent;
	}
	return next;
}

static FTSENT *walk_read(struct walk *walk)
{
	FTSENT *entry = walk->current;
	if (!walk->begun) {
		walk->begun = true;
		entry = walk->roots;
		walk->roots = NULL;
	} else if (entry) {
		int instruction = entry->fts_instr;
		entry->fts_instr = FTS_NOINSTR;
		if (instruction == FTS_AGAIN ||
		    (instruction == FTS_FOLLOW && (entry->fts_info == FTS_SL || entry->fts_info == FTS_SLNONE))) {
			entry->fts_info = examine(walk, entry, instruction == FTS_FOLLOW);
			return entry;
		}
		entry = entry->fts_info == FTS_D ? descend(walk, entry, instruction) : advance(entry);
	}
	while (entry && entry->fts_instr == FTS_SKIP && entry->fts_info != FTS_DP)
		entry = advance(entry);
	if (entry && entry->fts_instr == FTS_FOLLOW && entry->fts_info == FTS_SL) {
		entry->fts_info = examine(walk, entry, true);
		entry->fts_instr = FTS_NOINSTR;
	}
	walk->current = entry;
	if (entry && entry->fts_level == FTS_ROOTLEVEL)
		walk->fts.fts_dev = entry->fts_dev;
	if (!entry)
		errno = 0;
	return entry;
}

static void walk_close(struct walk *walk)
{
	free_list(walk->children);
	free_list(walk->roots);
	for (FTSENT *entry = walk->current; entry && entry != walk->root;) {
		FTSENT *parent = entry->fts_parent;
		free_list(entry);
		entry = parent;
	}
	free(walk->root);
	free(walk);
}

EXPORT FTS *fts_open(char *const *paths, int options, int (*compare)(const FTSENT **, const FTSENT **))
{
	for (char *const *path = paths; *path; path++) {
		if (**path && begins_here(AT_FDCWD, *path))
			return walk_open(paths, options, compare);
	}
	return REAL(fts_open)(paths, options, compare);
}
ALIAS(fts64_open, fts_open);

EXPORT FTSENT *fts_read(FTS *fts)
{
	struct walk *walk = find_walk(fts, false);
	return walk ? walk_read(walk) : REAL(fts_read)(fts);
}
ALIAS(fts64_read, fts_read);

EXPORT FTSENT *fts_children(FTS *fts, int options)
{
	struct walk *walk = find_walk(fts, false);
	if (!walk)
		return REAL(fts_children)(fts, options);
	errno = 0;
	if (!walk->begun)
		return walk->roots;
	if (!walk->current || walk->current->fts_info != FTS_D)
		return NULL;
	if (!walk->children && !read_children(walk, walk->current, &walk->children))
		return NULL;
	return walk->children;
}
ALIAS(fts64_children, fts_children);

EXPORT int fts_set(FTS *fts, FTSENT *entry, int instruction)
{
	if (!find_walk(fts, false))
		return REAL(fts_set)(fts, entry, instruction);
	entry->fts_instr = (unsigned short)instruction;
	return 0;
}
ALIAS(fts64_set, fts_set);

EXPORT int fts_close(FTS *fts)
{
	struct walk *walk = find_walk(fts, true);
	if (!walk)
		return REAL(fts_close)(fts);
	walk_close(walk);
	return 0;
}
ALIAS(fts64_close, fts_close);

/* Returns the type of an entry for the caller of nftw(3), or -1 if the entry is not reported. */
static int nftw_type(const FTSENT *entry, int flags)
{
	switch (entry->fts_info) {
	case FTS_D:
		return flags & FTW_DEPTH ? -1 : FTW_D;
	case FTS_DP:
		return flags & FTW_DEPTH ? FTW_DP : -1;
	case FTS_DNR:
		return FTW_DNR;
	case FTS_NS:
		return FTW_NS;
	case FTS_SL:
		return FTW_SL;
	case FTS_SLNONE:
		return FTW_SLN;
	case FTS_DC:
		return -1;
	default:
		return FTW_F;
	}
}

/* Calls the caller's function, in the directory of the entry if that is asked for. */
static int report(const FTSENT *entry, int type, __nftw_func_t function, int flags, int home)
{
	char parent[PATH_MAX];
	const char *slash = strrchr(entry->fts_path, '/');
	struct FTW place = {slash && slash[1] ? (int)(slash + 1 - entry->fts_path) : 0, entry->fts_level};
	if ((flags & FTW_CHDIR) && place.base > 0 && place.base < PATH_MAX) {
		memcpy(parent, entry->fts_path, (size_t)place.base);
		parent[place.base] = '\0';
		if (chdir(parent) == -1)
			return -1;
	}
	int answer = function(entry->fts_path, entry->fts_statp, type, &place);
	if ((flags & FTW_CHDIR) && fchdir(home) == -1)
		return -1;
	return answer;
}

/* Handles what the caller's function returned. Returns true to continue. */
static bool obey(FTS *fts, FTSENT *entry, int answer, int flags, short *skip_level)
{
	if (!(flags & FTW_ACTIONRETVAL))
		return answer == 0;
	if (answer == FTW_SKIP_SUBTREE && entry->fts_info == FTS_D)
		fts_set(fts, entry, FTS_SKIP);
	if (answer == FTW_SKIP_SIBLINGS) {
		if (entry->fts_info == FTS_D)
			fts_set(fts, entry, FTS_SKIP);
		*skip_level = entry->fts_level;
	}
	return answer == FTW_CONTINUE || answer == FTW_SKIP_SUBTREE || answer == FTW_SKIP_SIBLINGS;
}

static int walk_tree(const char *path, __nftw_func_t function, int flags, int home)
{
	char *const paths[] = {(char *)path, NULL};
	int options = (flags & FTW_PHYS ? FTS_PHYSICAL : FTS_LOGICAL) | (flags & FTW_MOUNT ? FTS_XDEV : 0);
	FTS *fts = walk_open(paths, options, NULL);
	FTSENT *entry;
	int answer = 0;
	short skip_level = SHRT_MAX; /* entries at this level and below are skipped */
	if (!fts)
		return -1;
	while ((entry = fts_read(fts))) {
		int type = nftw_type(entry, flags);
		if (entry->fts_level < skip_level)
			skip_level = SHRT_MAX;
		bool skipped = entry->fts_level >= skip_level;
		if (skipped && entry->fts_info == FTS_D)
			fts_set(fts, entry, FTS_SKIP);
		if (skipped || type == -1)
			continue;
		if (entry->fts_level == FTS_ROOTLEVEL && entry->fts_info == FTS_NS) {
			errno = entry->fts_errno;
			answer = -1;
			break;
		}
		answer = report(entry, type, function, flags, home);
		if (!obey(fts, entry, answer, flags, &skip_level))
			break;
		answer = 0;
	}
	int error = errno;
	fts_close(fts);
	errno = error;
	return answer;
}

EXPORT int nftw(const char *path, __nftw_func_t function, int descriptors, int flags)
{
	if (!begins_here(AT_FDCWD, path))
		return REAL(nftw)(path, function, descriptors, flags);
	int home = flags & FTW_CHDIR ? REAL(openat)(AT_FDCWD, ".", O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
	if ((flags & FTW_CHDIR) && home == -1)
		return -1;
	int answer = walk_tree(path, function, flags, home), error = errno;
	if (home != -1)
		close(home);
	errno = error;
	return answer;
}
ALIAS(nftw64, nftw);

/* The function of the ftw(3) that runs in this thread. */
static _Thread_local __ftw_func_t ftw_function;

static int call_ftw(const char *path, const struct stat *st, int type, struct FTW *place)
{
	(void)place;
	return ftw_function(path, st, type == FTW_SLN || type == FTW_SL ? FTW_NS : type);
}

EXPORT int ftw(const char *path, __ftw_func_t function, int descriptors)
{
	if (!begins_here(AT_FDCWD, path))
		return REAL(ftw)(path, function, descriptors);
	__ftw_func_t outer = ftw_function;
	ftw_function = function;
	int answer = nftw(path, call_ftw, descriptors, 0);
	ftw_function = outer;
	return answer;
}
ALIAS(ftw64, ftw);
