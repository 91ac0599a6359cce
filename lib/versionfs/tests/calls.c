/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Calls functions that the preload library replaces and few programs use: calls DIRECTORY, with the
 * library loaded. The directory is as for client.c, with version 1 of `f`, "one\n". */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

static int seen;

static int visit(const char *path, const struct stat *st, int type, struct FTW *place)
{
	seen += type == FTW_F && !strcmp(path + place->base, "b;1") && place->level == 2 && st->st_size == 2;
	return 0;
}

static int is_f(const struct dirent *entry)
{
	return entry->d_name[0] == 'f';
}

static void walks(void)
{
	struct dirent **list;
	CHECK(scandir(".", &list, is_f, alphasort) == 2 && !strcmp(list[1]->d_name, "f;1"));
	free(list[0]);
	free(list[1]);
	free(list);
	glob_t found;
	CHECK(glob("./C;*/b*", 0, NULL, &found) == 0 && found.gl_pathc == 1);
	CHECK(!strcmp(found.gl_pathv[0], "./C;1/b;1"));
	globfree(&found);
	CHECK(nftw(".", visit, 8, FTW_PHYS) == 0 && seen == 1);
	CHECK(nftw(".", visit, 8, FTW_PHYS | FTW_DEPTH | FTW_CHDIR) == 0 && seen == 2);
	char *paths[] = {".", NULL};
	FTS *fts = fts_open(paths, FTS_PHYSICAL, NULL);
	int files = 0, before = 0, after = 0;
	for (FTSENT *entry; (entry = fts_read(fts));) {
		before += entry->fts_info == FTS_D;
		after += entry->fts_info == FTS_DP;
		files += entry->fts_info == FTS_F && (!strcmp(entry->fts_name, "b;1") || !strcmp(entry->fts_name, "d;1"));
		if (entry->fts_info == FTS_D && !strcmp(entry->fts_name, "sub;1"))
			fts_set(fts, entry, FTS_SKIP);
	}
	CHECK(errno == 0 && files == 1 && before == after && before == 3);
	CHECK(fts_close(fts) == 0);
}

static void positions(void)
{
	DIR *dir = opendir(".");
	struct dirent *entry;
	long position = -2;
	int count = 0;
	while ((entry = readdir(dir))) {
		count++;
		if (!strcmp(entry->d_name, "C;1"))
			position = telldir(dir);
	}
	seekdir(dir, position);
	CHECK((entry = readdir(dir)) && !strcmp(entry->d_name, "f;1"));
	rewinddir(dir);
	while (readdir(dir))
		count--;
	CHECK(count == 0);
	closedir(dir);
}

static void opens(void)
{
	char text[8] = "";
	struct stat st;
	errno = 77;
	FILE *file = fopen("f;1", "r");
	CHECK(file && errno == 77 && fread(text, 1, 8, file) == 4 && !strcmp(text, "one\n"));
	CHECK((file = freopen("C;1/b;1", "r", file)) && fgetc(file) == 'b');
	CHECK(!fopen("f;1", "r+") && errno == EROFS);
	CHECK(!fopen("f;1", "a") && errno == EROFS);
	CHECK(!freopen("f;1", "w", file) && errno == EROFS);
	CHECK(open("f;1", O_RDONLY | O_CREAT | O_EXCL, 0600) == -1 && errno == EEXIST);
	CHECK(open("C;1/new", O_WRONLY | O_CREAT, 0600) == -1 && errno == EROFS);
	CHECK(open("f;1/", O_RDONLY) == -1 && errno == ENOTDIR);
	CHECK(open("f;01", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(open("f;", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(mkdir("f;1", 0700) == -1 && errno == EEXIST);
	CHECK(link("f;1", "linked") == -1 && errno == EXDEV);
	CHECK(truncate("f;1", 0) == -1 && errno == EROFS);
	CHECK(access("f;1", R_OK) == 0 && access("f;1", W_OK) == -1 && errno == EROFS);
	CHECK(getxattr("f;1", "user.none", NULL, 0) == -1 && errno != ENOENT);
	CHECK(listxattr("f;1", NULL, 0) >= 0 || errno == ENOTSUP);
	CHECK(setxattr("f;1", "user.a", "b", 1, 0) == -1 && errno == EROFS);
	CHECK(statx(AT_FDCWD, "f;1", 0, STATX_ALL, &(struct statx){0}) == 0);
	CHECK(faccessat(AT_FDCWD, "f;1", R_OK, AT_EACCESS) == 0);
	int dir = open("C;1", O_RDONLY | O_DIRECTORY);
	CHECK(dir != -1 && fstatat(dir, "b;1", &st, 0) == 0 && st.st_size == 2);
	close(dir);
}

static int entries;

static void *list_often(void *argument)
{
	for (int i = 0; i < 100; i++) {
		struct stat st;
		DIR *dir = opendir(".");
		int count = 0;
		while (readdir(dir))
			count++;
		closedir(dir);
		CHECK(count == entries && stat("f;1", &st) == 0);
	}
	return argument;
}

/* Lists and forks in several threads. */
static void threads(void)
{
	pthread_t thread[4];
	DIR *once = opendir(".");
	while (readdir(once))
		entries++;
	closedir(once);
	CHECK(entries >= 5);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&thread[i], NULL, list_often, NULL) == 0);
	for (int i = 0; i < 20; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			DIR *dir = opendir(".");
			_exit(!(dir && readdir(dir) && closedir(dir) == 0));
		}
		int status;
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
}

int main(int argc, char **argv)
{
	CHECK(chdir(argc > 1 ? argv[1] : ".") == 0);
	walks();
	positions();
	opens();
	threads();
	puts("ok");
	return 0;
}
