/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "preload.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/auxv.h>

static const char *const names[REAL_COUNT] = {
#define X(name) #name,
	REAL_FUNCTIONS(X)
#undef X
};

static _Atomic(void *) functions[REAL_COUNT];

/* False before the constructor, in set-uid programs, and with VERSIONFS_PRELOAD=off. */
static atomic_bool active;
static bool changes[CHANGE_COUNT];

void *real_symbol(enum real_index index)
{
	void *function = atomic_load_explicit(&functions[index], memory_order_acquire);
	if (!function) {
		function = dlsym(RTLD_NEXT, names[index]);
		if (!function)
			abort(); /* not glibc */
		atomic_store_explicit(&functions[index], function, memory_order_release);
	}
	return function;
}

/* Programs that change whole sets by default. Editors and build tools are not among them: they save
 * by rename and unlink, which would remove the history. mv removes a file only after copying its
 * head elsewhere, so its removals are ordinary. */
static const struct {
	const char *program;
	enum change change;
} defaults[] = {
	{"mv", CHANGE_RENAME},      {"rename.ul", CHANGE_RENAME}, {"rm", CHANGE_REMOVE},
	{"unlink", CHANGE_REMOVE},  {"rmdir", CHANGE_REMOVE},     {"chmod", CHANGE_MODE},
	{"chown", CHANGE_OWNER},    {"chgrp", CHANGE_OWNER},
};

/* Returns whether a list, separated by colons, has a word. */
static bool has_word(const char *list, const char *word)
{
	size_t length = strlen(word);
	while (list) {
		if (strncmp(list, word, length) == 0 && (list[length] == ':' || list[length] == '\0'))
			return true;
		list = strchr(list, ':');
		list += list != NULL;
	}
	return false;
}

/* Reads VERSIONFS_SETS: all, none, or more programs, separated by colons. */
static void choose_changes(void)
{
	const char *program = program_invocation_short_name, *sets = getenv("VERSIONFS_SETS");
	bool all = sets && (strcmp(sets, "all") == 0 || has_word(sets, program));
	if (sets && strcmp(sets, "none") == 0)
		return;
	for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
		changes[defaults[i].change] |= all || strcmp(program, defaults[i].program) == 0;
}

bool program_changes(enum change change)
{
	return atomic_load_explicit(&active, memory_order_relaxed) && changes[change];
}

bool program_changes_any(void)
{
	return changes[CHANGE_RENAME] || changes[CHANGE_REMOVE] || changes[CHANGE_MODE] ||
	       changes[CHANGE_OWNER];
}

/* Returns the end of the component's digits if the component ends like a version, else NULL. `at`
 * points to the semicolon. */
static bool is_suffix(const char *at)
{
	size_t length = strspn(at + 1, "0123456789");
	return at[1] != '0' && length >= 1 && length <= 18 && (at[1 + length] == '/' || at[1 + length] == '\0');
}

bool names_version(const char *path)
{
	if (!path || !atomic_load_explicit(&active, memory_order_relaxed))
		return false;
	for (const char *at = strchr(path, ';'); at; at = strchr(at + 1, ';')) {
		if (at != path && at[-1] != '/' && is_suffix(at))
			return true;
	}
	return false;
}

static void before_fork(void)
{
	walks_lock();
	cwd_lock();
	directories_lock();
	devices_lock();
}

static void after_fork(void)
{
	devices_unlock();
	directories_unlock();
	cwd_unlock();
	walks_unlock();
}

__attribute__((constructor)) static void start(void)
{
	int saved = errno;
	const char *preload = getenv("VERSIONFS_PRELOAD");
	/* dlsym(3) may allocate. Find all functions now, so that none is looked up in a signal handler. */
	for (int i = 0; i < REAL_COUNT; i++)
		real_symbol((enum real_index)i);
	if (getauxval(AT_SECURE) == 0 && !(preload && strcmp(preload, "off") == 0)) {
		choose_changes();
		pthread_atfork(before_fork, after_fork, after_fork);
		atomic_store(&active, true);
	}
	errno = saved;
}
