/* A plugin that attaches state to each object, and says at its end how much of it was freed. */
#include "strata_layer.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static const struct strata_host *server;
static atomic_uint attached, freed_states;

static int decode_attr(void *self, const struct strata_caller *caller, const struct strata_object *file, struct strata_attr *attr)
{
	(void)self, (void)caller, (void)attr;
	if (!server->attached(file)) {
		void *mine = malloc(1);

		if (!mine)
			return -ENOMEM;
		if (server->attach(file, mine) == mine)
			attached++;
		else
			free(mine);
	}
	return 0;
}

static void freed(void *self, uint64_t id, void *state)
{
	(void)self, (void)id;
	free(state);
	freed_states++;
}

static const struct strata_attributes attributes = { .size = sizeof(attributes), .decode_attr = decode_attr };
static const struct strata_objects objects = { .size = sizeof(objects), .freed = freed };

static int open_layer(const struct strata_host *host, const struct strata_setting *settings, size_t setting_count,
		      struct strata_instance *instance, char *error, size_t error_capacity)
{
	(void)settings, (void)setting_count, (void)error, (void)error_capacity;
	server = host;
	instance->self = &attached;
	instance->attributes = &attributes;
	instance->objects = &objects;
	return 0;
}

static void close_layer(void *self)
{
	FILE *out = fopen("/mnt/closed", "w");

	(void)self;
	if (out) {
		fprintf(out, "%u attached, %u freed\n", attached, freed_states);
		fclose(out);
	}
}

static const struct strata_layer layer = {
	.magic = STRATA_MAGIC,
	.major = STRATA_MAJOR,
	.minor = STRATA_MINOR,
	.size = sizeof(layer),
	.name = "ends",
	.about = "says at its end how much state was freed",
	.open = open_layer,
	.close = close_layer,
};

const struct strata_layer *strata_layer_v1(void)
{
	return &layer;
}
