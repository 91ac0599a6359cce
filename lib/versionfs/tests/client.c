/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Tests the client interface on a mount: client DIRECTORY. The directory has a file `f` with version
 * 1, "one\n", and a removed directory `C`, with the file `b` removed before it. */
#define _GNU_SOURCE
#include "versionfs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

static void check_content(int fd, const char *expected)
{
	char text[100] = "";
	CHECK(pread(fd, text, sizeof text - 1, 0) == (ssize_t)strlen(expected));
	CHECK(strcmp(text, expected) == 0);
}

int main(int argc, char **argv)
{
	struct vs_set *set;
	struct vs_name name;
	struct stat st;
	int dir = open(argc > 1 ? argv[1] : ".", O_PATH | O_DIRECTORY), fd, found = 0;
	CHECK(dir != -1);
	CHECK(vs_stat(dir, "f", &set) == 0);
	CHECK(set->head == S_IFREG && set->count >= 1 && set->first == 1 && set->versions[0].size == 4);
	vs_version_stat(&set->versions[0], &st);
	CHECK(S_ISREG(st.st_mode) && st.st_size == 4);
	vs_free(set);

	CHECK((fd = vs_open(dir, "./f", 1)) != -1);
	check_content(fd, "one\n");
	CHECK(write(fd, "x", 1) == -1);
	close(fd);
	CHECK((fd = memfd_create("out", 0)) != -1 && write(fd, "0 ", 2) == 2);
	CHECK(vs_recover(dir, "f", 1, fd) == 0);
	check_content(fd, "0 one\n");
	close(fd);
	char path[] = "/tmp/versionfs-client-XXXXXX";
	CHECK((fd = mkstemp(path)) != -1 && unlink(path) == 0 && fcntl(fd, F_SETFL, O_APPEND) == 0);
	CHECK(vs_recover(dir, "f", 1, fd) == 0 && vs_recover(dir, "f", 1, fd) == 0);
	check_content(fd, "one\none\n");
	close(fd);

	CHECK((fd = vs_open(dir, "C", 1)) != -1);
	CHECK(vs_stat(fd, "b", &set) == 0 && set->head == 0 && set->count == 1);
	vs_free(set);
	struct vs_names *names = vs_names_open(fd, ".");
	CHECK(names);
	while (vs_names_next(names, &name) == 1)
		found += strcmp(name.name, "b") == 0 && name.head == 0 && name.count == 1;
	CHECK(found == 1);
	vs_names_close(names);
	close(fd);

	CHECK(vs_open(dir, "f", 999) == -1 && errno == ENOENT);
	CHECK(vs_open(dir, "f", 0) == -1 && errno == ENOENT);
	CHECK(vs_stat(dir, "no", &set) == -1 && errno == ENOENT);
	CHECK(vs_stat(dir, "..", &set) == -1 && errno == EINVAL);
	CHECK(vs_recover(dir, "C", 1, 1) == -1 && errno == EISDIR);
	CHECK(vs_stat(AT_FDCWD, "/etc/passwd", &set) == -1 && errno == ENOTTY);
	CHECK(vs_rename(dir, "f", AT_FDCWD, "/etc/f") == -1 && errno == EXDEV);

	CHECK(vs_chmod(dir, "f", 0600) == 0 && vs_chown(dir, "f", (uid_t)-1, getgid()) == 0);
	CHECK(vs_stat(dir, "f", &set) == 0 && (set->versions[0].mode & 07777) == 0600);
	vs_free(set);
	CHECK(vs_rename(dir, "f", dir, "g") == 0 && vs_stat(dir, "f", &set) == -1);
	CHECK((fd = vs_open(dir, "g", 1)) != -1);
	check_content(fd, "one\n");
	close(fd);
	CHECK(vs_rename(dir, "g", dir, "f") == 0);
	puts("ok");
	return 0;
}
