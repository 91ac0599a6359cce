/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Names with some of their letters moved on to the next: a layer in plain C. With the vowels (the default) "tree" is stored as "trii", and
 * that is what the layer shows as "tree".
 *
 *     make -C examples/c
 *     strata mount './vowels.so,letters=aeiou / /srv/data' /mnt
 */
#include "strata_layer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one mount of the layer needs to know: what each byte of a name becomes, both ways. */
struct vowels {
	uint8_t below[256];
	uint8_t above[256];
};

/* Answers how long the result is, and writes it if it fits: else the hook is called again with a larger buffer. */
static int64_t mapped(const uint8_t map[256], struct strata_bytes name, uint8_t *out, size_t capacity)
{
	if (name.len <= capacity)
		for (size_t i = 0; i < name.len; i++)
			out[i] = map[name.bytes[i]];
	return (int64_t)name.len;
}

static int64_t encode_filename(void *self, const struct strata_caller *caller, const struct strata_object *dir,
			       struct strata_bytes name, uint8_t *out, size_t capacity)
{
	(void)caller, (void)dir;
	return mapped(((struct vowels *)self)->below, name, out, capacity);
}

static int64_t decode_filename(void *self, const struct strata_caller *caller, const struct strata_object *dir,
			       struct strata_bytes name, uint8_t *out, size_t capacity)
{
	(void)caller, (void)dir;
	return mapped(((struct vowels *)self)->above, name, out, capacity);
}

static const struct strata_names names = {
	.size = sizeof(names),
	.encode_filename = encode_filename,
	.decode_filename = decode_filename,
};

/* The letters become the next of them, the last the first. Each must stand there once, else two names would be stored as one. */
static int set_up(struct vowels *vowels, struct strata_bytes letters)
{
	for (int i = 0; i < 256; i++)
		vowels->below[i] = vowels->above[i] = (uint8_t)i;
	for (size_t i = 0; i < letters.len; i++) {
		uint8_t letter = letters.bytes[i];
		if (letter == '/' || letter == '.' || letter == 0 || memchr(letters.bytes, letter, i))
			return -EINVAL;
		vowels->below[letter] = letters.bytes[(i + 1) % letters.len];
	}
	for (int i = 0; i < 256; i++)
		vowels->above[vowels->below[i]] = (uint8_t)i;
	return 0;
}

static int open_layer(const struct strata_host *host, const struct strata_setting *settings, size_t setting_count,
		      struct strata_instance *instance, char *error, size_t error_capacity)
{
	struct strata_bytes letters = { (const uint8_t *)"aeiou", 5 };
	struct vowels *vowels;

	(void)host;
	for (size_t i = 0; i < setting_count; i++)
		if (strcmp(settings[i].name, "letters") == 0)
			letters = settings[i].value;
	vowels = malloc(sizeof(*vowels));
	if (!vowels)
		return -ENOMEM;
	if (set_up(vowels, letters) != 0) {
		free(vowels);
		snprintf(error, error_capacity, "letters=: each letter can stand there once, and no / or .");
		return -EINVAL;
	}
	instance->self = vowels;
	instance->names = &names;
	return 0;
}

static void close_layer(void *self)
{
	free(self);
}

static const struct strata_option options[] = {
	{ "letters", "LETTERS", "The letters that are moved, each to the one after it. Default: aeiou." },
};

static const struct strata_layer layer = {
	.magic = STRATA_MAGIC,
	.major = STRATA_MAJOR,
	.minor = STRATA_MINOR,
	.size = sizeof(layer),
	.name = "vowels",
	.about = "stores names with some of their letters moved",
	.options = options,
	.option_count = sizeof(options) / sizeof(options[0]),
	.open = open_layer,
	.close = close_layer,
};

const struct strata_layer *strata_layer_v1(void)
{
	return &layer;
}
