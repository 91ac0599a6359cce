/* Case-insensitive names (ASCII). With SMALL, names are stored in lower case; otherwise as created. */
#include "strata_layer.h"

#include <errno.h>

static int64_t give(struct strata_bytes name, uint8_t *out, size_t capacity, int small)
{
	if (name.len <= capacity)
		for (size_t i = 0; i < name.len; i++)
			out[i] = small && name.bytes[i] >= 'A' && name.bytes[i] <= 'Z' ? name.bytes[i] + 32 : name.bytes[i];
	return (int64_t)name.len;
}

static int64_t as_it_is(void *self, const struct strata_caller *caller, const struct strata_object *dir, struct strata_bytes name,
			uint8_t *out, size_t capacity)
{
	(void)self, (void)caller, (void)dir;
	return give(name, out, capacity, 0);
}

static int64_t small(void *self, const struct strata_caller *caller, const struct strata_object *dir, struct strata_bytes name,
		     uint8_t *out, size_t capacity)
{
	(void)self, (void)caller, (void)dir;
	return give(name, out, capacity, 1);
}

static int matching(void *self)
{
	(void)self;
#ifdef SMALL
	return STRATA_MATCHING_ENCODED;
#else
	return STRATA_MATCHING_FOLDED;
#endif
}

static const struct strata_names names = {
	.size = sizeof(names),
#ifdef SMALL
	.encode_filename = small,
#else
	.encode_filename = as_it_is,
#endif
	.decode_filename = as_it_is,
	.matching = matching,
	.fold_filename = small,
};

static int open_it(const struct strata_host *host, const struct strata_setting *settings, size_t count,
		   struct strata_instance *instance, char *error, size_t capacity)
{
	(void)settings, (void)count, (void)error, (void)capacity;
	if (host->minor < 2)
		return -EOPNOTSUPP;
	instance->names = &names;
	return 0;
}

static const struct strata_layer layer = {
	.magic = STRATA_MAGIC,
	.major = STRATA_MAJOR,
	.minor = STRATA_MINOR,
	.size = sizeof(layer),
	.name = "anycase",
	.about = "finds names in any case",
	.open = open_it,
};

const struct strata_layer *strata_layer_v1(void)
{
	return &layer;
}
