/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "channel.h"

#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#define FRAME 8192
#define HEADER 64
#define MAX_NAME 128
#define PROTOCOL 1

/* A frame, as in docs/control.md. Numbers are little-endian. */
struct frame {
	char magic[8];
	uint16_t version;
	uint16_t zero;
	uint32_t error;
	uint64_t token;
	uint64_t offset;
	uint64_t whole;
	uint32_t name_length;
	uint32_t data_length;
	uint8_t zeros[16];
	char data[FRAME - HEADER];
};
_Static_assert(sizeof(struct frame) == FRAME, "a frame has no padding");

#define CONTROL _IOWR('S', 1, char[FRAME])

/* Exchanges one frame. On success, the header of the reply is valid and its numbers are in the
 * host's byte order. */
static int exchange(int fd, struct frame *frame)
{
	memcpy(frame->magic, "Strata?\n", 8);
	frame->version = htole16(PROTOCOL);
	if (ioctl(fd, CONTROL, frame) == -1)
		return -1;
	/* A device driver may use the same number for something else. */
	if (memcmp(frame->magic, "Strata!\n", 8) != 0) {
		errno = ENOTTY;
		return -1;
	}
	frame->error = le32toh(frame->error);
	frame->token = le64toh(frame->token);
	frame->offset = le64toh(frame->offset);
	frame->whole = le64toh(frame->whole);
	frame->data_length = le32toh(frame->data_length);
	if (frame->error != 0) {
		errno = frame->error <= 4095 ? (int)frame->error : EPROTO;
		return -1;
	}
	if (le16toh(frame->version) != PROTOCOL) {
		errno = EPROTO;
		return -1;
	}
	return 0;
}

/* Checks that a piece continues a reply of which `have` bytes are known. */
static int piece_fits(const struct frame *frame, uint64_t have, uint64_t whole)
{
	return frame->whole == whole && whole <= VS_MAX_REPLY && frame->offset == have &&
	       frame->data_length <= sizeof frame->data && frame->data_length <= whole - have &&
	       (frame->token != 0 ? frame->data_length > 0 : have + frame->data_length == whole);
}

int vs_call(int fd, const char *command, const void *input, size_t input_length, char **reply,
            size_t *length)
{
	struct frame frame = {0};
	size_t name_length = strlen(command);
	if (name_length > MAX_NAME || input_length > VS_MAX_INPUT) {
		errno = ENAMETOOLONG;
		return -1;
	}
	frame.name_length = htole32((uint32_t)name_length);
	frame.data_length = htole32((uint32_t)input_length);
	memcpy(frame.data, command, name_length);
	if (input_length != 0)
		memcpy(frame.data + name_length, input, input_length);
	if (exchange(fd, &frame) == -1)
		return -1;

	uint64_t whole = frame.whole, have = 0;
	char *text = NULL;
	for (;;) {
		if (!piece_fits(&frame, have, whole)) {
			free(text);
			errno = EBADMSG;
			return -1;
		}
		if (!text && !(text = malloc(whole + 1)))
			return -1;
		memcpy(text + have, frame.data, frame.data_length);
		have += frame.data_length;
		if (frame.token == 0)
			break;
		uint64_t token = frame.token;
		memset(&frame, 0, sizeof frame);
		frame.token = htole64(token);
		frame.offset = htole64(have);
		if (exchange(fd, &frame) == -1) {
			int error = errno;
			free(text);
			errno = error;
			return -1;
		}
	}
	text[have] = '\0';
	*reply = text;
	*length = have;
	return 0;
}
