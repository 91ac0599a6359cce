/* A name store with state in each directory: names are stored in hexadecimal, each byte combined with
 * the directory's state. BAD_* selects a defect. */
#include "strata_layer.h"

#include <errno.h>
#include <string.h>

#define LONGEST 60

static uint8_t next = 1;

static int64_t encode_filename(void *self, const struct strata_caller *caller, const struct strata_object *dir,
			       struct strata_bytes name, uint8_t *out, size_t capacity)
{
	static const char digits[] = "0123456789abcdef";

	(void)self, (void)caller;
	if (dir->state.len != 2)
		return -ENOKEY;
	if (2 * name.len <= capacity)
		for (size_t i = 0; i < name.len; i++) {
			uint8_t byte = name.bytes[i] ^ dir->state.bytes[0];
			out[2 * i] = (uint8_t)digits[byte >> 4];
			out[2 * i + 1] = (uint8_t)digits[byte & 15];
		}
	return (int64_t)(2 * name.len);
}

static int digit(uint8_t byte)
{
	return byte >= '0' && byte <= '9' ? byte - '0' : byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

static int64_t decode_filename(void *self, const struct strata_caller *caller, const struct strata_object *dir,
			       struct strata_bytes name, uint8_t *out, size_t capacity)
{
	(void)self, (void)caller;
	if (dir->state.len != 2)
		return -ENOKEY;
	if (name.len % 2 != 0)
		return -EINVAL;
	for (size_t i = 0; i < name.len / 2; i++) {
		int high = digit(name.bytes[2 * i]), low = digit(name.bytes[2 * i + 1]);
		if (high < 0 || low < 0)
			return -EINVAL;
		if (i < capacity)
			out[i] = (uint8_t)(high << 4 | low) ^ dir->state.bytes[0];
	}
	return (int64_t)(name.len / 2);
}

static int starts(struct strata_bytes name, const char *with)
{
	return name.len >= strlen(with) && memcmp(name.bytes, with, strlen(with)) == 0;
}

/* "c.long.HASH" is an object, "c.side.HASH" its side file. */
static int role(void *self, struct strata_bytes name, uint8_t *other, size_t *other_len)
{
	(void)self;
#ifdef BAD_ROLE
	return BAD_ROLE;
#endif
	if (!starts(name, "c."))
		return STRATA_ROLE_NAME;
	if (name.len != 7 + 16 || (!starts(name, "c.long.") && !starts(name, "c.side.")))
		return starts(name, "c.left") ? STRATA_ROLE_LEFTOVER : STRATA_ROLE_OWN;
	memcpy(other, name.bytes, name.len);
	memcpy(other, starts(name, "c.long.") ? "c.side." : "c.long.", 7);
	*other_len = name.len;
	return starts(name, "c.long.") ? STRATA_ROLE_LONG : STRATA_ROLE_SIDE;
}

static void hash(struct strata_bytes encoded, uint8_t *out)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < encoded.len; i++)
		sum = sum * UINT64_C(0x100000001b3) ^ encoded.bytes[i];
	for (int i = 0; i < 16; i++, sum >>= 4)
		out[i] = (uint8_t)"0123456789abcdef"[sum & 15];
}

static int long_name(void *self, struct strata_bytes encoded, struct strata_long_name *out)
{
	(void)self;
	if (encoded.len <= LONGEST)
		return 0;
	memcpy(out->object, "c.long.", 7);
	memcpy(out->side, "c.side.", 7);
	hash(encoded, out->object + 7);
	hash(encoded, out->side + 7);
	out->object_len = out->side_len = 23;
	memcpy(out->content, encoded.bytes, encoded.len);
	out->content_len = encoded.len;
#ifdef BAD_LENGTH
	out->object_len = BAD_LENGTH;
#endif
	return 1;
}

static int64_t encoded_name(void *self, struct strata_bytes object, struct strata_bytes content, uint8_t *out, size_t capacity)
{
	uint8_t digits[16];

	(void)self;
	hash(content, digits);
	if (object.len != 23 || memcmp(object.bytes + 7, digits, 16) != 0)
		return -EINVAL;
	if (content.len <= capacity)
		memcpy(out, content.bytes, content.len);
	return (int64_t)content.len;
}

static int state_file(void *self, struct strata_state_file *out)
{
	(void)self;
	memcpy(out->name, "c.state", 7);
	out->name_len = 7;
	out->longest = 2;
	out->mode = 0400;
#ifdef BAD_STATE
	out->name_len = BAD_STATE;
#endif
	return 1;
}

static int64_t new_state(void *self, const struct strata_caller *caller, uint8_t *out, size_t capacity)
{
	uint8_t byte = __atomic_fetch_add(&next, 1, __ATOMIC_SEQ_CST);

	(void)self, (void)caller;
	if (capacity < 2)
		return -ERANGE;
	out[0] = byte;
	out[1] = (uint8_t)~byte;
	return 2;
}

static int is_state(void *self, struct strata_bytes state)
{
	(void)self;
	return state.len == 2 && (state.bytes[0] ^ state.bytes[1]) == 0xff;
}

static const struct strata_names names = {
	.size = sizeof(names),
	.encode_filename = encode_filename,
	.decode_filename = decode_filename,
};

static const struct strata_name_store store = {
	.size = sizeof(store),
	.role = role,
	.long_name = long_name,
	.encoded_name = encoded_name,
	.state_file = state_file,
	.new_state = new_state,
#ifndef NO_IS_STATE
	.is_state = is_state,
#endif
};

static int open_layer(const struct strata_host *host, const struct strata_setting *settings, size_t setting_count,
		      struct strata_instance *instance, char *error, size_t error_capacity)
{
	(void)settings, (void)setting_count, (void)error, (void)error_capacity;
#ifdef NO_IS_STATE
	(void)is_state;
#endif
	if (host->minor < 3)
		return -EOPNOTSUPP;
	instance->names = &names;
	instance->store = &store;
	return 0;
}

static const struct strata_layer layer = {
	.magic = STRATA_MAGIC,
	.major = STRATA_MAJOR,
	.minor = STRATA_MINOR,
	.size = sizeof(layer),
	.name = "store",
	.about = "keeps what names are encoded with in each directory",
	.open = open_layer,
};

const struct strata_layer *strata_layer_v1(void)
{
	return &layer;
}
