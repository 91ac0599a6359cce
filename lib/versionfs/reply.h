/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Text of the commands `versionfs.*`: lines of fields, separated by one blank. Names and other free
 * text are escaped: bytes up to 0x20, 0x7f and the backslash are a backslash and three octal digits.
 * The parser trusts nothing: a malformed text makes a function return false. */
#ifndef VERSIONFS_REPLY_H
#define VERSIONFS_REPLY_H

#include "versionfs.h"

#include <stdbool.h>

/* Largest version number: it fits in 18 decimal digits. */
#define VS_MAX_NUMBER UINT64_C(999999999999999999)

/* A part of a text. */
struct vs_text {
	const char *at;
	const char *end;
};

/* The first line of the reply to versionfs.list. */
struct vs_head {
	mode_t head;
	uint64_t first, last, count;
};

/* Takes the next line, without its newline, from *text. Returns false at the end. */
bool vs_line(struct vs_text *text, struct vs_text *line);

/* Takes the next field from *line. Returns false if there is none, or if it is empty. */
bool vs_field(struct vs_text *line, struct vs_text *field);

/* Parses a field as a decimal number up to `most`. */
bool vs_number(struct vs_text field, uint64_t most, uint64_t *number);

/* Appends the escaped form of a name to buffer[*used], which has `size` bytes. */
bool vs_escape(const char *name, size_t length, char *buffer, size_t size, size_t *used);

/* Writes the unescaped form of a field and a NUL byte to out, which has room for the field's length
 * and one byte. Returns false if an escape is malformed or denotes a NUL byte. */
bool vs_unescape(struct vs_text field, char *out, size_t *length);

/* Parses `set HEAD FIRST LAST COUNT`. */
bool vs_parse_head(struct vs_text line, struct vs_head *head);

/* Parses the line of a version. Its strings are written to *strings, which is advanced, and has room
 * for the line's length and 3 bytes. */
bool vs_parse_version(struct vs_text line, struct vs_version *version, char **strings);

/* Parses `HEAD FIRST LAST COUNT NAME`. The name is written to out (see vs_unescape). A name that is
 * empty, ".", ".." or has a slash is malformed. */
bool vs_parse_name(struct vs_text line, struct vs_head *head, char *out);

/* Returns whether the line is `more ...`, and stores the rest. */
bool vs_parse_more(struct vs_text line, struct vs_text *rest);

/* Parses the reply of versionfs.open or versionfs.at: one name of an entry. */
bool vs_parse_token(struct vs_text text, char *out, size_t size);

#endif
