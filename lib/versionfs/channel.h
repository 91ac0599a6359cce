/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The control channel of a mount: one text command, one text reply. docs/control.md describes the
 * frames. */
#ifndef VERSIONFS_CHANNEL_H
#define VERSIONFS_CHANNEL_H

#include <stddef.h>

#define VS_MAX_INPUT 8000
#define VS_MAX_REPLY (1u << 20)

/* Sends a command to the regular file or directory `fd`. Returns 0 and a malloc'ed, NUL-terminated
 * reply, which may contain other NUL bytes: *length counts the bytes before the terminator. Returns
 * -1 with errno; ENOTTY if there is no such channel or command. */
int vs_call(int fd, const char *command, const void *input, size_t input_length, char **reply,
            size_t *length);

#endif
