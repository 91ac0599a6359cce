/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Tests the parser of replies: known texts, then random changes of them: parse [ROUNDS [SEED]]. Build
 * with -fsanitize=address,undefined to find wrong accesses. */
#define _GNU_SOURCE
#include "reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

/* Copies a text to a block of exactly its size, so that a wrong access is found. */
static struct vs_text exact(const char *bytes, size_t length, char **block)
{
	*block = malloc(length ? length : 1);
	memcpy(*block, bytes, length);
	return (struct vs_text){*block, *block + length};
}

/* Parses a text in all ways. Returns how many succeeded. */
static int parse_all(const char *bytes, size_t length)
{
	char *block, *out = malloc(length + 1), *strings = malloc(length + 3), *at = strings, token[256];
	struct vs_text text = exact(bytes, length, &block), line, rest;
	struct vs_head head;
	struct vs_version version = {0};
	int good = vs_parse_token(text, token, sizeof token);
	while (vs_line(&text, &line)) {
		good += vs_parse_head(line, &head) + vs_parse_name(line, &head, out) + vs_parse_more(line, &rest);
		at = strings;
		memset(&version, 0, sizeof version);
		if (vs_parse_version(line, &version, &at)) {
			good++;
			CHECK(at <= strings + length + 3);
			CHECK(version.number > 0 && strlen(version.note) <= length);
		}
	}
	free(block);
	free(out);
	free(strings);
	return good;
}

static const char version_line[] =
	"8 z file 123 45 0644 1000 100 12.000000001 -3.500000000 14.000000000 write 1000 77 70 my\\040prog pu a\\134b";

static void known(void)
{
	char strings[200], *at = strings, name[100], buffer[100];
	size_t used = 0, length;
	struct vs_version v = {0};
	struct vs_head head;
	CHECK(vs_parse_version((struct vs_text){version_line, version_line + strlen(version_line)}, &v, &at));
	CHECK(v.number == 8 && v.storage == 'z' && v.size == 123 && v.stored == 45);
	CHECK(v.mode == (S_IFREG | 0644) && v.uid == 1000 && v.gid == 100);
	CHECK(v.mtime.tv_sec == 12 && v.mtime.tv_nsec == 1 && v.born.tv_sec == -3 && v.died.tv_sec == 14);
	CHECK(!strcmp(v.operation, "write") && v.by_uid == 1000 && v.by_pid == 77 && v.by_sid == 70);
	CHECK(!strcmp(v.program, "my prog") && !strcmp(v.note, "a\\b") && v.flags == (VS_PINNED | VS_UNFINISHED));
	const char *good = "directory 1 3 2 a\\012b";
	CHECK(vs_parse_name((struct vs_text){good, good + strlen(good)}, &head, name));
	CHECK(head.head == S_IFDIR && head.first == 1 && head.last == 3 && head.count == 2 && !strcmp(name, "a\nb"));
	const char *bad[] = {
		"file 1 3 4 a", "file 3 1 1 a", "file 1 1 1 .", "file 1 1 1 ..", "file 1 1 1 a/b", "file 1 1 1 ",
		"file 1 1 1 a\\400", "file 1 1 1 a\\09", "file 1 1 1 a\\000", "file 1 1 1 a b", "file 1 -1 1 a",
		"other 1 1 1 a", "file 1 99999999999999999999999 1 a", "",
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		CHECK(!vs_parse_name((struct vs_text){bad[i], bad[i] + strlen(bad[i])}, &head, name));
	CHECK(vs_escape("a b\\\x7f\n", 6, buffer, sizeof buffer, &used));
	CHECK(used == 18 && !memcmp(buffer, "a\\040b\\134\\177\\012", used));
	CHECK(vs_unescape((struct vs_text){buffer, buffer + used}, name, &length) && length == 6);
	CHECK(!strcmp(name, "a b\\\x7f\n"));
	used = 0;
	CHECK(!vs_escape(" ", 1, buffer, 3, &used));
}

int main(int argc, char **argv)
{
	static const char *const seeds[] = {
		version_line,
		"set file 1 9 9\n1 f file 1 1 644 0 0 1.000000000 - - write - - - - - -\nmore 2\n",
		"file 1 3 3 foo\nnone 1 1 1 a\\040b\nmore x\n",
		".token-12345\n",
	};
	static const char interesting[] = " \n\\-.;/0179mset\0\xff";
	long rounds = argc > 1 ? atol(argv[1]) : 300000, parsed = 0;
	srandom(argc > 2 ? (unsigned)atol(argv[2]) : 1);
	known();
	for (long round = 0; round < rounds; round++) {
		char text[512];
		const char *seed = seeds[random() % 4];
		size_t length = strlen(seed);
		memcpy(text, seed, length);
		for (long changes = random() % 6; changes > 0; changes--) {
			size_t at = (size_t)random() % (length + 1);
			if (random() % 3 == 0 && at < length) {
				memmove(text + at, text + at + 1, --length - at);
			} else if (random() % 2 && length < sizeof text) {
				memmove(text + at + 1, text + at, length++ - at);
				text[at] = interesting[(size_t)random() % sizeof interesting];
			} else if (at < length) {
				text[at] = random() % 2 ? (char)random() : interesting[(size_t)random() % sizeof interesting];
			}
		}
		parsed += parse_all(text, length) > 0;
	}
	CHECK(rounds == 0 || parsed > rounds / 10);
	printf("parse: %ld texts, %ld of them parsed\n", rounds, parsed);
	return 0;
}
