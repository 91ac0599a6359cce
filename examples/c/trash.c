/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Removed files are kept, in a directory .trash beside them: a layer in plain C that works on the layer below. What a rename replaces is not
 * kept.
 *
 *     make -C examples/c
 *     strata mount './trash.so / /srv/data' /mnt
 */
#include "strata_layer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct strata_lower *lower;

static const struct strata_bytes trash = { (const uint8_t *)".trash", 6 };

/* Finds the directory .trash, or makes it, as the server: for its owner alone. */
static int find_trash(const struct strata_object *dir, const struct strata_caller *caller, struct strata_object **found)
{
	struct strata_caller server = *caller;
	int code = lower->lookup(dir, caller, trash, found, NULL);

	if (code != 0)
		return code < 0 ? code : 0;
	server.flags |= STRATA_AS_SERVER;
	code = lower->mkdir(dir, &server, trash, 0700, found, NULL);
	if (code != -EEXIST)
		return code;
	/* Another thread was first. */
	code = lower->lookup(dir, caller, trash, found, NULL);
	return code < 0 ? code : code == 1 ? 0 : -ENOENT;
}

/* Moves a file into the trash, under its name or its name with a number. */
static int move_to(const struct strata_object *dir, const struct strata_caller *caller, struct strata_bytes name,
		   const struct strata_object *to)
{
	char numbered[280];
	struct strata_bytes new_name = name;

	for (unsigned number = 1; number < 10000; number++) {
		int code = lower->rename(dir, caller, name, to, new_name, 1 /* RENAME_NOREPLACE */);

		if (code != -EEXIST)
			return code;
		/* A long name gives way to the number. */
		new_name.len = (size_t)snprintf(numbered, sizeof(numbered), "%.*s.%u", (int)(name.len > 249 ? 249 : name.len),
						(const char *)name.bytes, number);
		new_name.bytes = (const uint8_t *)numbered;
	}
	return -EEXIST;
}

/* Is the directory a trash itself? By the path, which is only a hint: if it is not known, what is removed is kept once more. */
static int is_trash(const struct strata_object *dir)
{
	uint8_t path[4096];
	int64_t len = dir->host->path(dir, path, sizeof(path));

	return len >= 7 && len <= (int64_t)sizeof(path) && memcmp(path + len - 7, "/.trash", 7) == 0;
}

static uint64_t interest(void *self)
{
	(void)self;
	return UINT64_C(1) << STRATA_UNLINK;
}

static int before(void *self, const struct strata_caller *caller, const struct strata_op *op, struct strata_reply *reply)
{
	struct strata_object *to;
	struct strata_attr attr;
	int code;

	(void)self;
	/* A directory can't be removed like this, and what is in the trash goes: the layer below sees to both. */
	code = lower->lookup(op->object, caller, op->name, NULL, &attr);
	if (code <= 0 || (attr.mode & 0170000) == 0040000 || is_trash(op->object))
		return code < 0 ? code : 0;
	code = find_trash(op->object, caller, &to);
	if (code != 0)
		return code;
	code = move_to(op->object, caller, op->name, to);
	lower->release(to);
	reply->kind = STRATA_DONE;
	return code < 0 ? code : 1;
}

static const struct strata_operations operations = {
	.size = sizeof(operations),
	.interest = interest,
	.before = before,
};

static int open_layer(const struct strata_host *host, const struct strata_setting *settings, size_t setting_count,
		      struct strata_instance *instance, char *error, size_t error_capacity)
{
	(void)settings, (void)setting_count;
	if (host->minor < 3) {
		snprintf(error, error_capacity, "the server is too old: the layer below needs version 1.3 of the interface");
		return -EINVAL;
	}
	lower = host->lower;
	instance->operations = &operations;
	instance->flags = STRATA_PATHS;
	return 0;
}

static const struct strata_layer layer = {
	.magic = STRATA_MAGIC,
	.major = STRATA_MAJOR,
	.minor = STRATA_MINOR,
	.size = sizeof(layer),
	.name = "trash",
	.about = "keeps removed files in .trash",
	.open = open_layer,
};

const struct strata_layer *strata_layer_v1(void)
{
	return &layer;
}
