/* Uses every function of the layer below, and state of objects; loaded by c.rs. Each ioctl is one
 * test and returns the line that failed. */
#include "strata_layer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RDWR 2
#define TEXT(text) ((struct strata_bytes){ (const uint8_t *)(text), sizeof(text) - 1 })
/* Returns the line number unless the condition holds. */
#define MUST(holds)                      \
	do {                             \
		if (!(holds)) {          \
			*line = __LINE__; \
			goto out;        \
		}                        \
	} while (0)

static const struct strata_host *server;
static const struct strata_lower *lower;

/* Numbers of attached and freed states. */
struct counts {
	uint64_t attached, freed, wrong;
};

static struct counts counts;

struct seen {
	char names[4096];
	size_t len;
	uint64_t cookie;
	int most;
};

static int each(void *arg, const struct strata_entry *entry)
{
	struct seen *seen = arg;

	if (seen->most-- == 0)
		return 1;
	if (seen->len + entry->name.len + 1 > sizeof(seen->names))
		return -ENOSPC;
	memcpy(seen->names + seen->len, entry->name.bytes, entry->name.len);
	seen->names[seen->len + entry->name.len] = ' ';
	seen->len += entry->name.len + 1;
	seen->cookie = entry->cookie;
	return 0;
}

static int refuses(void *arg, const struct strata_entry *entry)
{
	(void)arg, (void)entry;
	return -ENOTSUP;
}

/* Creates, uses and removes a tree in the directory. */
static int all(const struct strata_object *dir, const struct strata_caller *caller, int *line)
{
	struct strata_object *sub = NULL, *made = NULL, *link = NULL, *held = NULL, *found = NULL;
	struct strata_file *file = NULL, *again = NULL;
	struct strata_caller as_server = *caller;
	struct strata_attr attr;
	struct strata_setattr cut = { .valid = STRATA_SET_SIZE | STRATA_SET_MODE, .size = 4, .mode = 0600 };
	struct seen seen = { .most = -1 };
	uint8_t out[64];
	int code;

	*line = 0;
	MUST((code = lower->hold(dir, &held)) == 0 && held->id == dir->id && held->kind == 0040000);
	MUST((code = lower->mkdir(dir, caller, TEXT("sub"), 0750, &sub, &attr)) == 0 && (attr.mode & 07777) == 0750);
	MUST((code = lower->create(sub, caller, TEXT("file"), 0640, RDWR, &made, &attr, &file)) == 0 && attr.uid == caller->uid);
	MUST((code = (int)lower->write(file, caller, TEXT("some words"), 0)) == 10);
	MUST((code = (int)lower->read(file, caller, out, 5, 5)) == 5 && memcmp(out, "words", 5) == 0);
	MUST((code = lower->fsync(file, caller, 1)) == 0);
	MUST((code = (int)lower->seek(file, caller, 3, 4)) == 10 && lower->seek(file, caller, 3, 3) == 3);
	MUST((code = (int)lower->seek(file, caller, 3, 9)) == -EINVAL);
	MUST((code = lower->setattr(made, caller, &cut, &attr)) == 0 && attr.size == 4 && (attr.mode & 07777) == 0600);
	MUST((code = lower->fallocate(file, caller, 3, 1, 2)) == 0);
	MUST((code = lower->open(made, caller, 0, &again)) == 0 && lower->read(again, caller, out, 64, 0) == 4);
	MUST(memcmp(out, "s\0\0e", 4) == 0 && lower->write(again, caller, TEXT("x"), 0) == -EBADF);
	MUST((code = lower->setxattr(made, caller, TEXT("user.x"), TEXT("value"), 1)) == 0);
	MUST((code = lower->setxattr(made, caller, TEXT("user.x"), TEXT("value"), 1)) == -EEXIST);
	MUST((code = (int)server->getxattr(made, caller, TEXT("user.x"), out, 64)) == 5 && memcmp(out, "value", 5) == 0);
	MUST((code = (int)lower->listxattr(made, caller, out, 64)) == 7 && memcmp(out, "user.x", 7) == 0);
	MUST((code = lower->removexattr(made, caller, TEXT("user.x"))) == 0 && lower->listxattr(made, caller, NULL, 0) == 0);
	MUST((code = lower->symlink(sub, caller, TEXT("link"), TEXT("file"), &link, NULL)) == 0 && (link->kind & 0170000) == 0120000);
	MUST((code = (int)lower->readlink(link, caller, out, 2)) == 4 && memcmp(out, "fi", 2) == 0);
	MUST((code = lower->mknod(sub, caller, TEXT("pipe"), 0010644, 0, NULL, &attr)) == 0 && attr.nlink == 1);
	MUST((code = lower->link(held, caller, TEXT("second"), made, &attr)) == 0 && attr.nlink == 2);
	/* As the server's user, for any caller. */
	as_server.flags |= STRATA_AS_SERVER;
	MUST((code = lower->mkdir(sub, &as_server, TEXT("own"), 0777, NULL, &attr)) == 0 && attr.uid == 0 && (attr.mode & 0777) == 0777);
	MUST((code = lower->readdir(sub, caller, 0, each, &seen)) == 0 && seen.len == 19);
	seen = (struct seen){ .most = 2 };
	MUST((code = lower->readdir(sub, caller, 0, each, &seen)) == 0);
	seen.most = -1;
	MUST((code = lower->readdir(sub, caller, seen.cookie, each, &seen)) == 0 && seen.len == 19);
	MUST((code = lower->readdir(sub, caller, 0, refuses, NULL)) == -ENOTSUP);
	MUST((code = lower->rename(sub, caller, TEXT("pipe"), held, TEXT("second"), 1)) == -EEXIST);
	MUST((code = lower->rename(sub, caller, TEXT("pipe"), held, TEXT("second"), 8)) == -EINVAL);
	MUST((code = lower->rename(sub, caller, TEXT("pipe"), held, TEXT("second"), 2)) == 0);
	MUST((code = lower->lookup(sub, caller, TEXT("pipe"), &found, NULL)) == 1 && found->id == made->id);
	MUST((code = lower->sync_directory(sub, caller, 0)) == 0);
	MUST((code = lower->lookup(sub, caller, TEXT("none"), NULL, NULL)) == 0);
	MUST((code = lower->lookup(sub, caller, TEXT("a/b"), NULL, NULL)) == -EINVAL);
	MUST((code = lower->lookup(made, caller, TEXT("none"), NULL, NULL)) == -ENOTDIR);
	MUST((code = lower->rmdir(dir, caller, TEXT("sub"))) == -ENOTEMPTY);
	/* Held objects have neither state nor path. */
	MUST(!server->attach(held, &counts) && !server->attached(held) && server->path(held, out, 64) == -ENODATA);
	MUST((code = lower->tmpfile(dir, caller, 0600, RDWR, NULL, NULL, NULL)) == 0);
	/* Remove everything. */
	MUST((code = lower->unlink(sub, caller, TEXT("file"))) == 0 && lower->unlink(sub, caller, TEXT("link")) == 0);
	MUST((code = lower->unlink(sub, caller, TEXT("pipe"))) == 0 && lower->unlink(dir, caller, TEXT("second")) == 0);
	MUST((code = lower->rmdir(sub, caller, TEXT("own"))) == 0 && lower->rmdir(dir, caller, TEXT("sub")) == 0);
	/* An unlinked object that is held remains usable. */
	MUST((code = (int)lower->read(file, caller, out, 64, 0)) == 4);
	code = 0;
out:
	lower->release(sub), lower->release(made), lower->release(link), lower->release(held), lower->release(found);
	lower->close(file), lower->close(again);
	lower->release(NULL), lower->close(NULL);
	return code;
}

static int ioctl_hook(void *self, const struct strata_caller *caller, const struct strata_object *dir, uint32_t cmd,
		      struct strata_bytes input, uint8_t *out, size_t capacity, size_t *out_len, int32_t *result)
{
	int code, line;

	(void)self, (void)input;
	switch (cmd) {
	case 1:
		code = all(dir, caller, &line);
		*result = line;
		if (capacity < sizeof(code))
			return -EINVAL;
		memcpy(out, &code, sizeof(code));
		*out_len = sizeof(code);
		return 1;
	case 2:
		if (capacity < sizeof(counts))
			return -EINVAL;
		memcpy(out, &counts, sizeof(counts));
		*out_len = sizeof(counts);
		return 1;
	case 3: {
		int64_t len = server->path(dir, out, capacity);

		if (len < 0)
			return (int)len;
		*out_len = (size_t)len;
		return 1;
	}
	}
	return 0;
}

struct state {
	uint64_t id;
	int is_freed;
};

/* Leaves attributes unchanged. Attaches state to each object on first use. */
static int decode_attr(void *self, const struct strata_caller *caller, const struct strata_object *file, struct strata_attr *attr)
{
	struct state *mine, *state = server->attached(file);

	(void)self, (void)caller, (void)attr;
	if (!state) {
		mine = malloc(sizeof(*mine));
		if (!mine)
			return -ENOMEM;
		*mine = (struct state){ .id = file->id };
		state = server->attach(file, mine);
		if (state == mine)
			__atomic_add_fetch(&counts.attached, 1, __ATOMIC_SEQ_CST);
		else
			free(mine);
	}
	if (!state || state->id != file->id || state->is_freed)
		__atomic_add_fetch(&counts.wrong, 1, __ATOMIC_SEQ_CST);
	return 0;
}

static void freed(void *self, uint64_t id, void *pointer)
{
	struct state *state = pointer;

	(void)self;
	if (state->id != id || state->is_freed)
		__atomic_add_fetch(&counts.wrong, 1, __ATOMIC_SEQ_CST);
	state->is_freed = 1;
	free(state);
	__atomic_add_fetch(&counts.freed, 1, __ATOMIC_SEQ_CST);
}

static const struct strata_ioctls ioctls = { .size = sizeof(ioctls), .ioctl = ioctl_hook };
static const struct strata_attributes attributes = { .size = sizeof(attributes), .decode_attr = decode_attr };
static const struct strata_objects objects = { .size = sizeof(objects), .freed = freed };

static int open_layer(const struct strata_host *host, const struct strata_setting *settings, size_t setting_count,
		      struct strata_instance *instance, char *error, size_t error_capacity)
{
	(void)settings, (void)setting_count, (void)error, (void)error_capacity;
	if (host->minor < 3)
		return -EOPNOTSUPP;
	server = host;
	lower = host->lower;
	memset(&counts, 0, sizeof(counts));
	instance->ioctls = &ioctls;
	instance->attributes = &attributes;
	instance->objects = &objects;
	instance->flags = STRATA_PATHS;
	return 0;
}

static const struct strata_layer layer = {
	.magic = STRATA_MAGIC,
	.major = STRATA_MAJOR,
	.minor = STRATA_MINOR,
	.size = sizeof(layer),
	.name = "lower",
	.about = "uses the layer below",
	.open = open_layer,
};

const struct strata_layer *strata_layer_v1(void)
{
	return &layer;
}
