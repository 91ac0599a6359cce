/* Layers with one defect each, selected by a macro: compiled many times by hostile.rs. */
#include "strata_layer.h"

#include <errno.h>
#include <string.h>

#ifndef ANSWER
#define ANSWER 0
#endif
#ifndef TEXT
#define TEXT "name"
#endif

/* Returns a name, a length or an error, as selected by the macros. */
static int64_t any_name(void *self, const struct strata_caller *caller, const struct strata_object *dir,
			struct strata_bytes name, uint8_t *out, size_t capacity)
{
	(void)self, (void)caller, (void)dir;
#if defined LENGTH
	(void)name, (void)out, (void)capacity;
	return LENGTH;
#elif defined GROWING
	(void)name, (void)out;
	return (int64_t)capacity + 100;
#elif defined SAME_TEXT
	(void)name, (void)capacity;
	memcpy(out, TEXT, sizeof(TEXT) - 1);
	return sizeof(TEXT) - 1;
#else
	if (name.len <= capacity)
		memcpy(out, name.bytes, name.len);
	return (int64_t)name.len;
#endif
}

static int attr(void *self, const struct strata_caller *caller, const struct strata_object *file, struct strata_attr *attr)
{
	(void)self, (void)caller, (void)file;
#ifdef BAD_TIME
	attr->mtime.nsec = 1000000000;
#endif
	/* Both are ignored: the type of an object never changes. */
	attr->mode = 0010600;
	attr->ino = 77;
	return ANSWER;
}

static size_t block_size(void *self)
{
	(void)self;
#ifdef BLOCK
	return (size_t)BLOCK;
#else
	return 16;
#endif
}

static int block(void *self, const struct strata_caller *caller, const struct strata_object *file, uint64_t number,
		 const uint8_t *from, uint8_t *to, size_t len)
{
	(void)self, (void)caller, (void)file, (void)number;
	for (size_t i = 0; i < len; i++)
		to[i] = from[i] ^ 0x55;
	return ANSWER;
}

static int storage(void *self, struct strata_storage *out)
{
	(void)self;
	memcpy(out->id, "hostile", 8);
#ifdef BLOCK
	out->block_size = (uint32_t)BLOCK;
#else
	out->block_size = 512;
#endif
#ifdef FOREIGN
	out->foreign = FOREIGN;
#endif
#ifdef STORAGE_ANSWER
	return STORAGE_ANSWER;
#else
	return 0;
#endif
}

static size_t max_encoded(void *self, size_t plain)
{
	(void)self;
#ifdef MOST
	(void)plain;
	return (size_t)MOST;
#else
	return plain + 1;
#endif
}

static int64_t encode(void *self, const struct strata_block_at *at, struct strata_bytes plain, uint8_t *out, size_t capacity)
{
	(void)self, (void)at, (void)plain, (void)out, (void)capacity;
#ifdef LENGTH
	return LENGTH;
#else
	out[0] = 'x';
	memcpy(out + 1, plain.bytes, plain.len);
	return (int64_t)plain.len + 1;
#endif
}

static int decode(void *self, const struct strata_block_at *at, struct strata_bytes encoded, uint8_t *out, size_t len)
{
	(void)self, (void)at;
	if (encoded.len != len + 1)
		return -EIO;
	memcpy(out, encoded.bytes + 1, len);
	return ANSWER;
}

static uint64_t interest(void *self)
{
	(void)self;
	return ~UINT64_C(0);
}

static int before(void *self, const struct strata_caller *caller, const struct strata_op *op, struct strata_reply *reply)
{
	(void)self, (void)caller;
	if (op->kind != STRATA_READLINK)
		return 0;
#ifdef REPLY
	reply->kind = REPLY;
	if (reply->put(reply, "answered", 8) != 0)
		return -ENOMEM;
	return 1;
#else
	(void)reply;
	return ANSWER;
#endif
}

static int ioctl_hook(void *self, const struct strata_caller *caller, const struct strata_object *file, uint32_t cmd,
		      struct strata_bytes input, uint8_t *out, size_t capacity, size_t *out_len, int32_t *result)
{
	(void)self, (void)caller, (void)file, (void)cmd, (void)input, (void)out;
	*result = 5;
	*out_len = capacity + 1;
	return 1;
}

#ifdef MATCHING
static int matching(void *self)
{
	(void)self;
	return MATCHING;
}
#endif

static const struct strata_names names_table = {
#ifdef OLD_NAMES
	.size = 5 * sizeof(void *),
#else
	.size = sizeof(names_table),
#endif
#ifdef MATCHING
	.matching = matching,
#endif
#ifndef NO_ENCODE
	.encode_filename = any_name,
#endif
	.decode_filename = any_name,
};

static const struct strata_attributes attributes_table = { .size = sizeof(attributes_table), .decode_attr = attr };

static const struct strata_data data_table = {
#ifdef SMALL_TABLE
	.size = 8,
#else
	.size = sizeof(data_table),
#endif
	.block_size = block_size,
	.encode_data = block,
	.decode_data = block,
};

static const struct strata_codec codec_table = {
	.size = sizeof(codec_table),
	.storage = storage,
	.max_encoded = max_encoded,
	.encode = encode,
#ifndef NO_DECODE
	.decode = decode,
#endif
};

static const struct strata_operations operations_table = {
	.size = sizeof(operations_table),
	.interest = interest,
#ifndef NO_BEFORE
	.before = before,
#endif
};

static const struct strata_ioctls ioctls_table = { .size = sizeof(ioctls_table), .ioctl = ioctl_hook };

static int open_layer(const struct strata_host *host, const struct strata_setting *settings, size_t setting_count,
		      struct strata_instance *instance, char *error, size_t error_capacity)
{
	(void)host, (void)settings, (void)setting_count, (void)error, (void)error_capacity;
	(void)names_table, (void)attributes_table, (void)data_table, (void)operations_table, (void)ioctls_table, (void)codec_table;
#ifdef OPEN_ERROR
	memset(error, 'x', error_capacity);
#endif
#ifdef OPEN_ANSWER
	return OPEN_ANSWER;
#endif
#ifdef NAMES
	instance->names = &names_table;
#endif
#ifdef ATTRIBUTES
	instance->attributes = &attributes_table;
#endif
#ifdef DATA
	instance->data = &data_table;
#endif
#ifdef CODEC
	instance->codec = &codec_table;
#endif
#ifdef OPERATIONS
	instance->operations = &operations_table;
#endif
#ifdef IOCTLS
	instance->ioctls = &ioctls_table;
#endif
#ifdef FLAGS
	instance->flags = FLAGS;
#endif
	(void)instance;
	return 0;
}

#ifdef OPTIONS
static const struct strata_option options[] = { OPTIONS };
#endif

/* A newer version has additional fields at the end. */
static const struct newer {
	struct strata_layer layer;
	void *more[4];
} newer = {
	.layer = {
#ifdef MAGIC
		.magic = MAGIC,
#else
		.magic = STRATA_MAGIC,
#endif
#ifdef MAJOR
		.major = MAJOR,
#else
		.major = STRATA_MAJOR,
#endif
#ifdef NEWER
		.minor = 9,
		.size = sizeof(newer),
#elif defined SIZE
		.size = SIZE,
#else
		.size = sizeof(struct strata_layer),
#endif
#ifdef NAME
		.name = NAME,
#else
		.name = "hostile",
#endif
		.about = "has something wrong",
#ifdef OPTIONS
		.options = options,
		.option_count = sizeof(options) / sizeof(options[0]),
#endif
#ifdef COUNT
		.option_count = COUNT,
#endif
#ifndef NO_OPEN
		.open = open_layer,
#endif
	},
};

#ifdef SYMBOL
const struct strata_layer *SYMBOL(void);
const struct strata_layer *SYMBOL(void)
#else
const struct strata_layer *strata_layer_v1(void)
#endif
{
#ifdef NOTHING
	(void)newer;
	return NULL;
#else
	return &newer.layer;
#endif
}
