/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Runs of one byte stored as their length and the byte: a layer in plain C that changes the size of data. Random access, overwriting in place,
 * holes and exact sizes are the template's business.
 *
 *     make -C examples/c
 *     strata mount './runs.so / /srv/data' /mnt
 */
#include "strata_layer.h"

#include <errno.h>
#include <string.h>

static int storage(void *self, struct strata_storage *out)
{
	(void)self;
	memcpy(out->id, "runs-c\0", 8);
	out->block_size = 4096;
	out->foreign = STRATA_FOREIGN_PLAIN;
	return 0;
}

/* No two bytes that follow each other are the same. */
static size_t max_encoded(void *self, size_t plain)
{
	(void)self;
	return 2 * plain;
}

static int64_t encode(void *self, const struct strata_block_at *at, struct strata_bytes plain, uint8_t *out, size_t capacity)
{
	size_t len = 0;

	(void)self, (void)at, (void)capacity;
	for (size_t i = 0, run; i < plain.len; i += run) {
		for (run = 1; run < 255 && i + run < plain.len && plain.bytes[i + run] == plain.bytes[i]; run++)
			;
		out[len++] = (uint8_t)run;
		out[len++] = plain.bytes[i];
	}
	return (int64_t)len;
}

/* Whoever can write below may have written anything: nothing is believed. */
static int decode(void *self, const struct strata_block_at *at, struct strata_bytes encoded, uint8_t *out, size_t len)
{
	size_t done = 0;

	(void)self, (void)at;
	if (encoded.len % 2 != 0)
		return -EIO;
	for (size_t i = 0; i < encoded.len; i += 2) {
		if (encoded.bytes[i] > len - done)
			return -EIO;
		memset(out + done, encoded.bytes[i + 1], encoded.bytes[i]);
		done += encoded.bytes[i];
	}
	return done == len ? 0 : -EIO;
}

static const struct strata_codec codec = {
	.size = sizeof(codec),
	.storage = storage,
	.max_encoded = max_encoded,
	.encode = encode,
	.decode = decode,
};

static int open_layer(const struct strata_host *host, const struct strata_setting *settings, size_t setting_count,
		      struct strata_instance *instance, char *error, size_t error_capacity)
{
	static const char wanted[] = "the server is too old: codecs need version 1.1 of the interface";

	(void)settings, (void)setting_count;
	if (host->minor < 1) {
		if (error_capacity >= sizeof(wanted))
			memcpy(error, wanted, sizeof(wanted));
		return -EINVAL;
	}
	instance->codec = &codec;
	return 0;
}

static const struct strata_layer layer = {
	.magic = STRATA_MAGIC,
	.major = STRATA_MAJOR,
	.minor = STRATA_MINOR,
	.size = sizeof(layer),
	.name = "runs",
	.about = "stores runs of one byte as their length",
	.open = open_layer,
};

const struct strata_layer *strata_layer_v1(void)
{
	return &layer;
}
