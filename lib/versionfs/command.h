/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The commands of versionfs, for a directory descriptor and a name in it. The client interface and
 * the preload library are written with these. The descriptor must not be O_PATH. */
#ifndef VERSIONFS_COMMAND_H
#define VERSIONFS_COMMAND_H

#include "reply.h"

/* Longest name of an entry, and its NUL byte. */
#define VS_NAME_SIZE 256

/* Sends a command whose input is a format: %n is a name, %u a uint64_t, %o an octal mode_t, %i an
 * id_t, of which -1 is sent as -1. Other bytes are sent as they are. Returns 0 or -1 with errno. */
int vs_send(int dir, const char *command, char **reply, size_t *length, const char *format, ...);

/* Requests a token: the name of an entry of `dir` by which version n opens. `how` is "" or " raw".
 * The server accepts it for 10 seconds. */
int vs_token(int dir, const char *name, uint64_t n, const char *how, char token[VS_NAME_SIZE]);

/* Reads the set of a name. See vs_stat(). `from` is the first version wanted. */
int vs_list(int dir, const char *name, uint64_t from, struct vs_set **set);

/* Begins to iterate over the sets of `dir`, a descriptor that the iterator then owns. */
struct vs_names *vs_names_of(int dir);

int vs_rename_at(int dir, const char *name, int new_dir, const char *new_name);
int vs_chown_at(int dir, const char *name, uid_t uid, gid_t gid);
int vs_chmod_at(int dir, const char *name, mode_t mode);
int vs_remove_at(int dir, const char *name, bool directory);

#endif
