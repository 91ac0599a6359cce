/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "command.h"

#include "channel.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail(int error)
{
	errno = error;
	return -1;
}

/* Appends one argument of a format to an input. */
static bool append(char letter, va_list *arguments, char *input, size_t *used)
{
	size_t room = VS_MAX_INPUT - *used;
	int length;
	switch (letter) {
	case 'n': {
		const char *name = va_arg(*arguments, const char *);
		return vs_escape(name, strlen(name), input, VS_MAX_INPUT, used);
	}
	case 'u':
		length = snprintf(input + *used, room, "%" PRIu64, va_arg(*arguments, uint64_t));
		break;
	case 'o':
		length = snprintf(input + *used, room, "%o", va_arg(*arguments, unsigned));
		break;
	default: {
		uint32_t id = va_arg(*arguments, uint32_t);
		length = snprintf(input + *used, room, "%" PRId64, id == UINT32_MAX ? -1 : (int64_t)id);
	}
	}
	if (length < 0 || (size_t)length >= room)
		return false;
	*used += (size_t)length;
	return true;
}

int vs_send(int dir, const char *command, char **reply, size_t *length, const char *format, ...)
{
	char input[VS_MAX_INPUT];
	size_t used = 0;
	bool fits = true;
	va_list arguments;
	va_start(arguments, format);
	for (; *format && fits; format++) {
		if (*format == '%')
			fits = append(*++format, &arguments, input, &used);
		else if ((fits = used < sizeof input))
			input[used++] = *format;
	}
	va_end(arguments);
	if (!fits)
		return fail(ENAMETOOLONG);
	return vs_call(dir, command, input, used, reply, length);
}

/* Ends a command whose reply has no content. */
static int finish(int result, char **reply)
{
	if (result == 0)
		free(*reply);
	return result;
}

int vs_token(int dir, const char *name, uint64_t n, const char *how, char token[VS_NAME_SIZE])
{
	char *reply;
	size_t length;
	if (n == 0 || n > VS_MAX_NUMBER)
		return fail(ENOENT);
	if (vs_send(dir, "versionfs.open", &reply, &length, *how ? "%n %u raw" : "%n %u", name, n) == -1)
		return -1;
	bool good = vs_parse_token((struct vs_text){reply, reply + length}, token, VS_NAME_SIZE);
	free(reply);
	return good ? 0 : fail(EBADMSG);
}

/* The lines of versions, of all replies to versionfs.list. */
struct lines {
	struct vs_head head;
	char *text;
	size_t length;
	size_t count;
};

/* Adds a line and a newline. */
static void add_line(struct lines *lines, struct vs_text line)
{
	size_t length = (size_t)(line.end - line.at);
	memcpy(lines->text + lines->length, line.at, length);
	lines->text[lines->length + length] = '\n';
	lines->length += length + 1;
	lines->count++;
}

/* Adds a reply. Returns 1 and the next number if there are more, 0 if there are none, or -1. */
static int add_reply(struct lines *lines, struct vs_text text, uint64_t *from)
{
	struct vs_text line, rest;
	char *larger = realloc(lines->text, lines->length + (size_t)(text.end - text.at) + 2);
	if (!larger)
		return -1;
	lines->text = larger;
	if (!vs_line(&text, &line) || !vs_parse_head(line, &lines->head))
		return fail(EBADMSG);
	while (vs_line(&text, &line)) {
		uint64_t next;
		if (!vs_parse_more(line, &rest)) {
			add_line(lines, line);
			continue;
		}
		/* Without progress, the loop of requests would not end. */
		if (text.at != text.end || !vs_number(rest, VS_MAX_NUMBER, &next) || next <= *from)
			return fail(EBADMSG);
		*from = next;
		return 1;
	}
	return 0;
}

/* Builds a set in one block: the set, its versions, and their strings. */
static struct vs_set *build(const struct lines *lines)
{
	struct vs_set *set;
	struct vs_text text = {lines->text, lines->text + lines->length}, line;
	uint64_t previous = 0;
	set = calloc(1, sizeof *set + lines->count * (sizeof *set->versions + 3) + lines->length);
	if (!set)
		return NULL;
	set->head = lines->head.head;
	set->first = lines->head.first;
	set->last = lines->head.last;
	set->count = lines->count;
	set->versions = (struct vs_version *)(set + 1);
	char *strings = (char *)(set->versions + lines->count);
	for (size_t i = 0; i < lines->count; i++) {
		if (!vs_line(&text, &line) || !vs_parse_version(line, &set->versions[i], &strings) ||
		    set->versions[i].number <= previous) {
			free(set);
			errno = EBADMSG;
			return NULL;
		}
		previous = set->versions[i].number;
	}
	return set;
}

int vs_list(int dir, const char *name, uint64_t from, struct vs_set **set)
{
	struct lines lines = {0};
	int more;
	do {
		char *reply;
		size_t length;
		more = vs_send(dir, "versionfs.list", &reply, &length, from ? "%n %u" : "%n", name, from);
		if (more == 0) {
			more = add_reply(&lines, (struct vs_text){reply, reply + length}, &from);
			int error = errno;
			free(reply);
			errno = error;
		}
	} while (more == 1);
	*set = more == 0 ? build(&lines) : NULL;
	int error = errno;
	free(lines.text);
	errno = error;
	return *set ? 0 : -1;
}

struct vs_names {
	int dir;
	char *reply; /* NULL: the next one is to be requested */
	struct vs_text text;
	char *after; /* the name after which the next reply begins, or NULL */
	bool ended;
	char *name;
};

struct vs_names *vs_names_of(int dir)
{
	struct vs_names *names = calloc(1, sizeof *names);
	if (!names)
		return NULL;
	names->dir = dir;
	return names;
}

/* Requests the next reply, which begins after names->after. */
static int request_names(struct vs_names *names)
{
	size_t length;
	const char *after = names->after ? names->after : "";
	if (vs_send(names->dir, "versionfs.names", &names->reply, &length, "%n", after) == -1)
		return -1;
	names->text = (struct vs_text){names->reply, names->reply + length};
	free(names->name);
	names->name = malloc(length + 1);
	return names->name ? 0 : -1;
}

/* Handles a line `more NAME`. */
static int continue_after(struct vs_names *names, struct vs_text rest)
{
	char *after = malloc((size_t)(rest.end - rest.at) + 1);
	size_t length;
	if (!after)
		return -1;
	/* The server sorts by any order, so only the same name again is known to be no progress. */
	if (!vs_unescape(rest, after, &length) || length == 0 || names->text.at != names->text.end ||
	    (names->after && strcmp(names->after, after) == 0)) {
		free(after);
		return fail(EBADMSG);
	}
	free(names->after);
	names->after = after;
	free(names->reply);
	names->reply = NULL;
	return 0;
}

__attribute__((visibility("default"))) int vs_names_next(struct vs_names *names, struct vs_name *name)
{
	struct vs_text line, rest;
	struct vs_head head;
	while (!names->ended) {
		if (!names->reply && request_names(names) == -1)
			return -1;
		if (!vs_line(&names->text, &line)) {
			names->ended = true;
		} else if (vs_parse_more(line, &rest)) {
			if (continue_after(names, rest) == -1)
				return -1;
		} else if (!vs_parse_name(line, &head, names->name)) {
			return fail(EBADMSG);
		} else {
			*name = (struct vs_name){names->name, head.head, head.first, head.last, head.count};
			return 1;
		}
	}
	return 0;
}

__attribute__((visibility("default"))) void vs_names_close(struct vs_names *names)
{
	int error = errno;
	if (!names)
		return;
	close(names->dir);
	free(names->reply);
	free(names->after);
	free(names->name);
	free(names);
	errno = error;
}

int vs_rename_at(int dir, const char *name, int new_dir, const char *new_name)
{
	struct stat old_stat, new_stat;
	char *reply = NULL;
	size_t length;
	if (fstat(dir, &old_stat) == -1 || fstat(new_dir, &new_stat) == -1)
		return -1;
	if (old_stat.st_dev != new_stat.st_dev)
		return fail(EXDEV);
	return finish(vs_send(dir, "versionfs.rename", &reply, &length, "%n %u %n", name,
	                      (uint64_t)new_stat.st_ino, new_name),
	              &reply);
}

int vs_chown_at(int dir, const char *name, uid_t uid, gid_t gid)
{
	char *reply = NULL;
	size_t length;
	return finish(vs_send(dir, "versionfs.chown", &reply, &length, "%n %i %i", name, uid, gid), &reply);
}

int vs_chmod_at(int dir, const char *name, mode_t mode)
{
	char *reply = NULL;
	size_t length;
	return finish(vs_send(dir, "versionfs.chmod", &reply, &length, "%n %o", name, mode & 07777), &reply);
}

int vs_remove_at(int dir, const char *name, bool directory)
{
	char *reply = NULL;
	size_t length;
	const char *command = directory ? "versionfs.rmdir" : "versionfs.unlink";
	return finish(vs_send(dir, command, &reply, &length, "%n", name), &reply);
}
