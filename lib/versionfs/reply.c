/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "reply.h"

#include <string.h>

static size_t length_of(struct vs_text text)
{
	return (size_t)(text.end - text.at);
}

static bool is_word(struct vs_text field, const char *word)
{
	return length_of(field) == strlen(word) && memcmp(field.at, word, length_of(field)) == 0;
}

/* Takes bytes up to a separator or the end. */
static void take(struct vs_text *from, char separator, struct vs_text *part)
{
	const char *stop = memchr(from->at, separator, length_of(*from));
	part->at = from->at;
	part->end = stop ? stop : from->end;
	from->at = stop ? stop + 1 : from->end;
}

bool vs_line(struct vs_text *text, struct vs_text *line)
{
	if (text->at == text->end)
		return false;
	take(text, '\n', line);
	return true;
}

bool vs_field(struct vs_text *line, struct vs_text *field)
{
	if (line->at == line->end)
		return false;
	take(line, ' ', field);
	return field->at != field->end;
}

/* Parses digits of a base up to 10. */
static bool digits(struct vs_text field, unsigned base, uint64_t most, uint64_t *number)
{
	uint64_t value = 0;
	if (field.at == field.end || length_of(field) > 22)
		return false;
	for (const char *at = field.at; at < field.end; at++) {
		unsigned digit = (unsigned)(unsigned char)*at - '0';
		if (digit >= base || value > (UINT64_MAX - digit) / base)
			return false;
		value = value * base + digit;
	}
	if (value > most)
		return false;
	*number = value;
	return true;
}

bool vs_number(struct vs_text field, uint64_t most, uint64_t *number)
{
	return digits(field, 10, most, number);
}

/* Parses a number that may be negative or `-` (unknown: 0). */
static bool signed_number(struct vs_text field, int64_t *number)
{
	uint64_t value = 0;
	bool negative = field.at < field.end && *field.at == '-';
	if (negative)
		field.at++;
	if (!(negative && field.at == field.end) && !vs_number(field, INT64_MAX, &value))
		return false;
	*number = negative ? -(int64_t)value : (int64_t)value;
	return true;
}

/* Parses `SEC.NNNNNNNNN`; `-` is 0. */
static bool instant(struct vs_text field, struct timespec *time)
{
	struct vs_text seconds;
	int64_t sec;
	uint64_t nsec = 0;
	take(&field, '.', &seconds);
	if (!signed_number(seconds, &sec))
		return false;
	if (field.at != field.end && (length_of(field) != 9 || !vs_number(field, 999999999, &nsec)))
		return false;
	time->tv_sec = sec;
	time->tv_nsec = (long)nsec;
	return true;
}

bool vs_escape(const char *name, size_t length, char *buffer, size_t size, size_t *used)
{
	for (size_t i = 0; i < length; i++) {
		unsigned char byte = (unsigned char)name[i];
		bool plain = byte > 0x20 && byte != 0x7f && byte != '\\';
		if (size - *used < (plain ? 1u : 4u))
			return false;
		if (plain) {
			buffer[(*used)++] = (char)byte;
		} else {
			buffer[(*used)++] = '\\';
			for (int shift = 6; shift >= 0; shift -= 3)
				buffer[(*used)++] = (char)('0' + ((byte >> shift) & 7));
		}
	}
	return true;
}

bool vs_unescape(struct vs_text field, char *out, size_t *length)
{
	size_t used = 0;
	while (field.at < field.end) {
		char byte = *field.at++;
		if (byte == '\\') {
			uint64_t value;
			if (length_of(field) < 3 ||
			    !digits((struct vs_text){field.at, field.at + 3}, 8, 255, &value))
				return false;
			byte = (char)(unsigned char)value;
			field.at += 3;
		}
		if (byte == '\0')
			return false;
		out[used++] = byte;
	}
	out[used] = '\0';
	*length = used;
	return true;
}

/* Parses the type of an object; `none` is 0. */
static bool kind(struct vs_text field, mode_t *type)
{
	static const struct {
		const char *word;
		mode_t type;
	} kinds[] = {
		{"file", S_IFREG},   {"directory", S_IFDIR}, {"symlink", S_IFLNK}, {"device", S_IFCHR},
		{"fifo", S_IFIFO},   {"socket", S_IFSOCK},   {"none", 0},
	};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		if (is_word(field, kinds[i].word)) {
			*type = kinds[i].type;
			return true;
		}
	}
	return false;
}

/* Takes the next field as a number. */
static bool take_number(struct vs_text *line, uint64_t most, uint64_t *number)
{
	struct vs_text field;
	return vs_field(line, &field) && vs_number(field, most, number);
}

static bool take_signed(struct vs_text *line, int64_t *number)
{
	struct vs_text field;
	return vs_field(line, &field) && signed_number(field, number);
}

static bool take_time(struct vs_text *line, struct timespec *time)
{
	struct vs_text field;
	return vs_field(line, &field) && instant(field, time);
}

static bool take_head(struct vs_text *line, struct vs_head *head)
{
	struct vs_text field;
	return vs_field(line, &field) && kind(field, &head->head) &&
	       take_number(line, VS_MAX_NUMBER, &head->first) &&
	       take_number(line, VS_MAX_NUMBER, &head->last) &&
	       take_number(line, VS_MAX_NUMBER, &head->count) && head->first <= head->last &&
	       head->count <= head->last - head->first + 1;
}

bool vs_parse_head(struct vs_text line, struct vs_head *head)
{
	struct vs_text field;
	return vs_field(&line, &field) && is_word(field, "set") && take_head(&line, head) &&
	       line.at == line.end;
}

/* Takes a field of free text, `-` if empty. */
static bool take_string(struct vs_text *line, const char **string, char **strings)
{
	struct vs_text field;
	size_t length;
	if (!vs_field(line, &field))
		return false;
	if (is_word(field, "-"))
		field.end = field.at;
	if (!vs_unescape(field, *strings, &length))
		return false;
	*string = *strings;
	*strings += length + 1;
	return true;
}

static bool take_flags(struct vs_text *line, uint32_t *flags)
{
	struct vs_text field;
	*flags = 0;
	if (!vs_field(line, &field))
		return false;
	for (const char *at = field.at; at < field.end; at++) {
		*flags |= *at == 'p' ? VS_PINNED : *at == 'l' ? VS_LANDMARK : *at == 'u' ? VS_UNFINISHED : 0;
	}
	return true;
}

/* Takes MODE UID GID. */
static bool take_attributes(struct vs_text *line, struct vs_version *version)
{
	struct vs_text field;
	uint64_t mode, uid, gid;
	if (!vs_field(line, &field) || !digits(field, 8, 0177777, &mode) ||
	    !take_number(line, UINT32_MAX, &uid) || !take_number(line, UINT32_MAX, &gid))
		return false;
	version->mode |= (mode_t)(mode & 07777);
	version->uid = (uid_t)uid;
	version->gid = (gid_t)gid;
	return true;
}

/* Takes OP BYUID BYPID BYSID COMM. */
static bool take_author(struct vs_text *line, struct vs_version *version, char **strings)
{
	int64_t uid, pid, sid;
	if (!take_string(line, &version->operation, strings) || !take_signed(line, &uid) ||
	    !take_signed(line, &pid) || !take_signed(line, &sid) ||
	    !take_string(line, &version->program, strings))
		return false;
	version->by_uid = (uid_t)uid;
	version->by_pid = (pid_t)pid;
	version->by_sid = (pid_t)sid;
	return true;
}

bool vs_parse_version(struct vs_text line, struct vs_version *version, char **strings)
{
	struct vs_text letter, type;
	if (!take_number(&line, VS_MAX_NUMBER, &version->number) || version->number == 0 ||
	    !vs_field(&line, &letter) || length_of(letter) != 1 || !vs_field(&line, &type) ||
	    !kind(type, &version->mode))
		return false;
	version->storage = *letter.at;
	/* Fields that a later server adds at the end are ignored. */
	return take_number(&line, INT64_MAX, &version->size) &&
	       take_number(&line, INT64_MAX, &version->stored) && take_attributes(&line, version) &&
	       take_time(&line, &version->mtime) && take_time(&line, &version->born) &&
	       take_time(&line, &version->died) && take_author(&line, version, strings) &&
	       take_flags(&line, &version->flags) && take_string(&line, &version->note, strings);
}

/* Returns whether a text can be the name of a directory entry. */
static bool is_entry(const char *name, size_t length)
{
	return length != 0 && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
	       !memchr(name, '/', length);
}

bool vs_parse_name(struct vs_text line, struct vs_head *head, char *out)
{
	struct vs_text field;
	size_t length;
	return take_head(&line, head) && vs_field(&line, &field) && line.at == line.end &&
	       vs_unescape(field, out, &length) && is_entry(out, length);
}

bool vs_parse_more(struct vs_text line, struct vs_text *rest)
{
	struct vs_text field;
	return vs_field(&line, &field) && is_word(field, "more") && vs_field(&line, rest) &&
	       line.at == line.end;
}

bool vs_parse_token(struct vs_text text, char *out, size_t size)
{
	struct vs_text line;
	size_t length;
	return vs_line(&text, &line) && text.at == text.end && length_of(line) < size &&
	       !memchr(line.at, ' ', length_of(line)) && vs_unescape(line, out, &length) &&
	       is_entry(out, length);
}
