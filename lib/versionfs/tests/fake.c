/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A small server for tests of the C library: passes operations to a directory and keeps versions as
 * whole copies, with the control channel of docs/control.md. Not for use: one thread, one user.
 *
 *     fake SOURCE MNT -f
 *
 * The versions of NAME in directory D are D/.fake/NAME;N. A token is `.t,NAME;N`. */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define STORE ".fake"
#define TOKEN ".t,"
#define PIECE 1000 /* small, so that long replies are tested */

static const char *source;

/* Translates a path of the mount; tokens become version files. */
static char *below(const char *path, char out[PATH_MAX])
{
	size_t used = (size_t)snprintf(out, PATH_MAX, "%s", source);
	while (*path) {
		size_t length;
		path += strspn(path, "/");
		length = strcspn(path, "/");
		if (length && used + length + 16 < PATH_MAX) {
			if (strncmp(path, TOKEN, strlen(TOKEN)) == 0)
				used += (size_t)snprintf(out + used, PATH_MAX - used, "/" STORE "/%.*s",
				                         (int)(length - strlen(TOKEN)), path + strlen(TOKEN));
			else
				used += (size_t)snprintf(out + used, PATH_MAX - used, "/%.*s", (int)length, path);
		}
		path += length;
	}
	return out;
}

/* Returns whether a path leads into an old version. */
static bool is_old(const char *path)
{
	return strstr(path, "/" TOKEN) != NULL;
}

#define BELOW(path) char lower_[PATH_MAX]; const char *lower = below(path, lower_)
#define ANSWER(call) return (call) == -1 ? -errno : 0
#define CHANGING(path) if (is_old(path)) return -EROFS

/* Splits a path of SOURCE. */
static void split(const char *lower, char dir[PATH_MAX], char name[PATH_MAX])
{
	const char *slash = strrchr(lower, '/');
	snprintf(dir, PATH_MAX, "%.*s", (int)(slash - lower), lower);
	snprintf(name, PATH_MAX, "%s", slash + 1);
}

/* Returns the smallest and largest number of a set. */
static void bounds(const char *dir, const char *name, unsigned long *first, unsigned long *last,
                   unsigned long *count)
{
	char store[PATH_MAX + 16];
	size_t length = strlen(name);
	*first = *last = *count = 0;
	snprintf(store, sizeof store, "%s/" STORE, dir);
	DIR *stream = opendir(store);
	for (struct dirent *e; stream && (e = readdir(stream));) {
		if (strncmp(e->d_name, name, length) == 0 && e->d_name[length] == ';' &&
		    !strchr(e->d_name + length + 1, ';')) {
			unsigned long n = strtoul(e->d_name + length + 1, NULL, 10);
			if (*count == 0 || n < *first)
				*first = n;
			if (n > *last)
				*last = n;
			++*count;
		}
	}
	if (stream)
		closedir(stream);
}

/* Makes the path of the next version of a path of SOURCE. */
static void next_version(const char *lower, char out[2 * PATH_MAX])
{
	char dir[PATH_MAX], name[PATH_MAX];
	unsigned long first, last, count;
	split(lower, dir, name);
	snprintf(out, 2 * PATH_MAX, "%s/" STORE, dir);
	mkdir(out, 0700);
	bounds(dir, name, &first, &last, &count);
	snprintf(out, 2 * PATH_MAX, "%s/" STORE "/%s;%lu", dir, name, last + 1);
}

/* Copies the head to a new version. */
static void save(const char *lower)
{
	char version[2 * PATH_MAX], buffer[65536];
	struct stat st;
	ssize_t n;
	if (lstat(lower, &st) == -1 || !S_ISREG(st.st_mode))
		return;
	next_version(lower, version);
	int in = open(lower, O_RDONLY), out = open(version, O_WRONLY | O_CREAT | O_EXCL, st.st_mode & 07777);
	while ((n = read(in, buffer, sizeof buffer)) > 0 && write(out, buffer, (size_t)n) == n)
		;
	fchown(out, st.st_uid, st.st_gid) == 0 ? (void)0 : (void)0;
	struct timespec times[2] = {st.st_atim, st.st_mtim};
	futimens(out, times);
	close(in);
	close(out);
}

static int f_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
	(void)fi;
	BELOW(path);
	ANSWER(lstat(lower, st));
}

static int f_readlink(const char *path, char *out, size_t size)
{
	BELOW(path);
	ssize_t n = readlink(lower, out, size - 1);
	if (n == -1)
		return -errno;
	out[n] = '\0';
	return 0;
}

static int f_mkdir(const char *path, mode_t mode)
{
	CHANGING(path);
	BELOW(path);
	ANSWER(mkdir(lower, mode));
}

/* Moves the head to a new version. */
static int retire(const char *lower)
{
	char version[2 * PATH_MAX];
	next_version(lower, version);
	ANSWER(rename(lower, version));
}

static int f_unlink(const char *path)
{
	CHANGING(path);
	BELOW(path);
	struct stat st;
	if (lstat(lower, &st) == -1)
		return -errno;
	return S_ISDIR(st.st_mode) ? -EISDIR : retire(lower);
}

/* Returns whether a directory has nothing but versions. */
static bool is_empty(const char *lower)
{
	bool empty = true;
	DIR *stream = opendir(lower);
	for (struct dirent *e; stream && (e = readdir(stream));)
		empty &= !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || !strcmp(e->d_name, STORE);
	if (stream)
		closedir(stream);
	return empty;
}

static int f_rmdir(const char *path)
{
	CHANGING(path);
	BELOW(path);
	return is_empty(lower) ? retire(lower) : -ENOTEMPTY;
}

static int f_symlink(const char *target, const char *path)
{
	CHANGING(path);
	BELOW(path);
	ANSWER(symlink(target, lower));
}

static int f_rename(const char *from, const char *to, unsigned flags)
{
	char lower_to[PATH_MAX];
	CHANGING(from);
	CHANGING(to);
	BELOW(from);
	below(to, lower_to);
	if (!(flags & RENAME_NOREPLACE))
		save(lower_to);
	save(lower);
	ANSWER(renameat2(AT_FDCWD, lower, AT_FDCWD, lower_to, flags));
}

static int f_link(const char *from, const char *to)
{
	char lower_to[PATH_MAX];
	CHANGING(to);
	BELOW(from);
	ANSWER(link(lower, below(to, lower_to)));
}

static int f_chmod(const char *path, mode_t mode, struct fuse_file_info *fi)
{
	(void)fi;
	CHANGING(path);
	BELOW(path);
	ANSWER(chmod(lower, mode));
}

static int f_chown(const char *path, uid_t uid, gid_t gid, struct fuse_file_info *fi)
{
	(void)fi;
	CHANGING(path);
	BELOW(path);
	ANSWER(lchown(lower, uid, gid));
}

static int f_truncate(const char *path, off_t size, struct fuse_file_info *fi)
{
	struct stat st;
	CHANGING(path);
	BELOW(path);
	if (!fi && stat(lower, &st) == 0 && st.st_size != size)
		save(lower);
	ANSWER(truncate(lower, size));
}

static int f_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *fi)
{
	(void)fi;
	CHANGING(path);
	BELOW(path);
	ANSWER(utimensat(AT_FDCWD, lower, times, AT_SYMLINK_NOFOLLOW));
}

/* One version for each time that the file is opened for writing. */
static int f_open(const char *path, struct fuse_file_info *fi)
{
	BELOW(path);
	struct stat st;
	bool writes = (fi->flags & O_ACCMODE) != O_RDONLY;
	if (writes)
		CHANGING(path);
	if (writes && stat(lower, &st) == 0 && st.st_size > 0)
		save(lower);
	int fd = open(lower, fi->flags & ~(O_CREAT | O_EXCL | O_NOFOLLOW));
	fi->fh = (uint64_t)fd;
	return fd == -1 ? -errno : 0;
}

static int f_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
	CHANGING(path);
	BELOW(path);
	int fd = open(lower, fi->flags, mode);
	fi->fh = (uint64_t)fd;
	return fd == -1 ? -errno : 0;
}

static int f_read(const char *path, char *out, size_t size, off_t at, struct fuse_file_info *fi)
{
	(void)path;
	ssize_t n = pread((int)fi->fh, out, size, at);
	return n == -1 ? -errno : (int)n;
}

static int f_write(const char *path, const char *data, size_t size, off_t at, struct fuse_file_info *fi)
{
	(void)path;
	ssize_t n = fi->flags & O_APPEND ? write((int)fi->fh, data, size) : pwrite((int)fi->fh, data, size, at);
	return n == -1 ? -errno : (int)n;
}

static int f_release(const char *path, struct fuse_file_info *fi)
{
	(void)path;
	close((int)fi->fh);
	return 0;
}

static int f_statfs(const char *path, struct statvfs *fs)
{
	BELOW(path);
	ANSWER(statvfs(lower, fs));
}

static int f_getxattr(const char *path, const char *name, char *value, size_t size)
{
	BELOW(path);
	ssize_t n = lgetxattr(lower, name, value, size);
	return n == -1 ? -errno : (int)n;
}

static int f_listxattr(const char *path, char *list, size_t size)
{
	BELOW(path);
	ssize_t n = llistxattr(lower, list, size);
	return n == -1 ? -errno : (int)n;
}

static int f_setxattr(const char *path, const char *name, const char *value, size_t size, int flags)
{
	CHANGING(path);
	BELOW(path);
	ANSWER(lsetxattr(lower, name, value, size, flags));
}

static int f_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t at,
                     struct fuse_file_info *fi, enum fuse_readdir_flags flags)
{
	(void)at, (void)fi, (void)flags;
	BELOW(path);
	DIR *stream = opendir(lower);
	if (!stream)
		return -errno;
	for (struct dirent *e; (e = readdir(stream));) {
		struct stat st = {.st_ino = e->d_ino, .st_mode = (mode_t)e->d_type << 12};
		if (strcmp(e->d_name, STORE) != 0)
			fill(buffer, e->d_name, &st, 0, 0);
	}
	closedir(stream);
	return 0;
}

/* Escapes and unescapes a name. */
static void escape(const char *name, FILE *out)
{
	for (; *name; name++) {
		unsigned char c = (unsigned char)*name;
		fprintf(out, c <= 0x20 || c == 0x7f || c == '\\' ? "\\%03o" : "%c", c);
	}
}

static void unescape(char *name)
{
	char *to = name;
	for (; *name; name++) {
		unsigned value;
		if (*name == '\\' && sscanf(name + 1, "%3o", &value) == 1) {
			*to++ = (char)value;
			name += 3;
		} else {
			*to++ = *name;
		}
	}
	*to = '\0';
}

static const char *word(const char *path)
{
	struct stat st;
	if (lstat(path, &st) == -1)
		return "none";
	return S_ISDIR(st.st_mode) ? "directory" : S_ISLNK(st.st_mode) ? "symlink" : "file";
}

/* Calls a function on the head and the versions of a set. Returns how many there were. */
static int for_set(const char *dir, const char *name, int (*each)(const char *, const char *, void *),
                   void *argument)
{
	char path[2 * PATH_MAX], suffix[32];
	unsigned long first, last, count;
	int done = 0;
	bounds(dir, name, &first, &last, &count);
	for (unsigned long n = first; n && n <= last; n++) {
		snprintf(suffix, sizeof suffix, ";%lu", n);
		snprintf(path, sizeof path, "%s/" STORE "/%s%s", dir, name, suffix);
		if (access(path, F_OK) == 0 || readlink(path, suffix, 0) != -1)
			done += each(path, suffix, argument) == 0;
	}
	snprintf(path, sizeof path, "%s/%s", dir, name);
	if (faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		done += each(path, "", argument) == 0;
	return done;
}

static int each_remove(const char *path, const char *suffix, void *argument)
{
	(void)suffix, (void)argument;
	char *const command[] = {"rm", "-rf", (char *)path, NULL};
	pid_t pid = fork();
	if (pid == 0) {
		execv("/bin/rm", command);
		_exit(127);
	}
	int status;
	return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : -1;
}

static int each_chmod(const char *path, const char *suffix, void *argument)
{
	(void)suffix;
	return chmod(path, *(mode_t *)argument);
}

static int each_chown(const char *path, const char *suffix, void *argument)
{
	(void)suffix;
	return lchown(path, ((uid_t *)argument)[0], ((uid_t *)argument)[1]);
}

static int each_rename(const char *path, const char *suffix, void *argument)
{
	char to[3 * PATH_MAX];
	const char **target = argument;
	snprintf(to, sizeof to, *suffix ? "%s/" STORE "/%s%s" : "%s/%s%s", target[0], target[1], suffix);
	return rename(path, to);
}

static void list(const char *dir, const char *name, unsigned long from, FILE *out)
{
	char path[2 * PATH_MAX];
	unsigned long first, last, count;
	struct stat st;
	bounds(dir, name, &first, &last, &count);
	snprintf(path, sizeof path, "%s/%s", dir, name);
	fprintf(out, "set %s %lu %lu %lu\n", word(path), first, last, count);
	int lines = 0;
	for (unsigned long n = from > first ? from : first; n && n <= last; n++) {
		snprintf(path, sizeof path, "%s/" STORE "/%s;%lu", dir, name, n);
		if (lstat(path, &st) == -1)
			continue;
		if (++lines > 50) {
			fprintf(out, "more %lu\n", n);
			return;
		}
		fprintf(out, "%lu %c %s %lld %lld %o %u %u %lld.%09ld %lld.%09ld %lld.%09ld write 0 1 1 a\\040b pl -\n", n,
		        S_ISDIR(st.st_mode) ? 'd' : 'f', word(path), (long long)st.st_size, (long long)st.st_blocks * 512,
		        st.st_mode & 07777, st.st_uid, st.st_gid, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
		        (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (long long)st.st_ctim.tv_sec, st.st_ctim.tv_nsec);
	}
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names(const char *dir, const char *after, FILE *out)
{
	char path[2 * PATH_MAX], *all[100000];
	size_t count = 0;
	int lines = 0;
	snprintf(path, sizeof path, "%s/" STORE, dir);
	DIR *stream = opendir(path);
	for (struct dirent *e; stream && (e = readdir(stream));) {
		char *semicolon = strrchr(e->d_name, ';');
		if (semicolon) {
			*semicolon = '\0';
			all[count++] = strdup(e->d_name);
		}
	}
	if (stream)
		closedir(stream);
	qsort(all, count, sizeof *all, compare);
	for (size_t i = 0; i < count; i++) {
		unsigned long first, last, number;
		if (strcmp(all[i], after) <= 0 || (i && strcmp(all[i], all[i - 1]) == 0))
			continue;
		if (++lines > 20) {
			fputs("more ", out);
			escape(all[i - 1], out);
			fputs("\n", out);
			break;
		}
		bounds(dir, all[i], &first, &last, &number);
		snprintf(path, sizeof path, "%s/%s", dir, all[i]);
		fprintf(out, "%s %lu %lu %lu ", word(path), first, last, number);
		escape(all[i], out);
		fputs("\n", out);
	}
	for (size_t i = 0; i < count; i++)
		free(all[i]);
}

/* Finds the directory of SOURCE with an inode number. */
static bool find_dir(const char *dir, unsigned long inode, char out[PATH_MAX])
{
	char command[2 * PATH_MAX];
	snprintf(command, sizeof command, "find '%s' -inum %lu -type d", dir, inode);
	FILE *pipe = popen(command, "r");
	bool found = pipe && fgets(out, PATH_MAX, pipe);
	if (pipe)
		pclose(pipe);
	if (found)
		out[strcspn(out, "\n")] = '\0';
	return found;
}

static int run(const char *dir, const char *command, char *input, FILE *out)
{
	char *field[4] = {"", "", "", ""}, path[2 * PATH_MAX], target[PATH_MAX];
	struct stat st;
	for (int i = 0; i < 4 && input; i++)
		field[i] = strsep(&input, " ");
	unescape(field[0]);
	if (strcmp(command, "server.commands") == 0) {
		fputs("versionfs.names anyone the fake\n", out);
		return 0;
	}
	if (strncmp(command, "versionfs.", 10) != 0)
		return ENOTTY;
	command += 10;
	if (strcmp(command, "names") == 0) {
		names(dir, field[0], out);
		return 0;
	}
	snprintf(path, sizeof path, "%s/%s", dir, field[0]);
	unsigned long first, last, count;
	bounds(dir, field[0], &first, &last, &count);
	if (lstat(path, &st) == -1 && count == 0)
		return ENOENT;
	if (strcmp(command, "list") == 0) {
		list(dir, field[0], strtoul(field[1], NULL, 10), out);
		return 0;
	}
	if (strcmp(command, "open") == 0) {
		snprintf(path, sizeof path, "%s/" STORE "/%s;%s", dir, field[0], field[1]);
		if (lstat(path, &st) == -1)
			return ENOENT;
		fputs(TOKEN, out);
		escape(field[0], out);
		fprintf(out, ";%s\n", field[1]);
		return 0;
	}
	if (strstr(dir, "/" STORE))
		return EROFS;
	if (strcmp(command, "unlink") == 0)
		return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) ? EISDIR : for_set(dir, field[0], each_remove, NULL) ? 0 : EIO;
	if (strcmp(command, "rmdir") == 0)
		return lstat(path, &st) == 0 && !is_empty(path) ? ENOTEMPTY : for_set(dir, field[0], each_remove, NULL) ? 0 : EIO;
	if (strcmp(command, "chmod") == 0) {
		mode_t mode = (mode_t)strtoul(field[1], NULL, 8);
		return for_set(dir, field[0], each_chmod, &mode) ? 0 : EIO;
	}
	if (strcmp(command, "chown") == 0) {
		uid_t ids[2] = {(uid_t)atol(field[1]), (uid_t)atol(field[2])};
		return for_set(dir, field[0], each_chown, ids) ? 0 : EIO;
	}
	if (strcmp(command, "rename") == 0 && find_dir(source, strtoul(field[1], NULL, 10), target)) {
		unescape(field[2]);
		const char *to[2] = {target, field[2]};
		bounds(target, field[2], &first, &last, &count);
		snprintf(path, sizeof path, "%s/" STORE, target);
		mkdir(path, 0700);
		return count ? EEXIST : for_set(dir, field[0], each_rename, to) ? 0 : EIO;
	}
	return ENOTTY;
}

#define FRAME 8192
static char *kept; /* the long reply */
static size_t kept_length;

static void put(char *frame, size_t at, uint64_t value, size_t size)
{
	memcpy(frame + at, &value, size);
}

static int f_ioctl(const char *path, int cmd, void *arg, struct fuse_file_info *fi, unsigned flags,
                   void *data)
{
	(void)arg, (void)fi, (void)flags;
	BELOW(path);
	char *frame = data, command[129] = "", input[8001] = "";
	uint64_t token, offset = 0;
	uint32_t name_length, data_length;
	int error = 0;
	if ((unsigned)cmd != (unsigned)_IOWR('S', 1, char[FRAME]) || memcmp(frame, "Strata?\n", 8) != 0)
		return -ENOTTY;
	memcpy(&token, frame + 16, 8);
	memcpy(&offset, frame + 24, 8);
	memcpy(&name_length, frame + 40, 4);
	memcpy(&data_length, frame + 44, 4);
	if (token == 0) {
		if (name_length > 128 || data_length > 8000)
			return -EINVAL;
		memcpy(command, frame + 64, name_length);
		memcpy(input, frame + 64 + name_length, data_length);
		free(kept);
		FILE *out = open_memstream(&kept, &kept_length);
		error = run(lower, command, input, out);
		fclose(out);
		offset = 0;
	}
	size_t piece = error || offset > kept_length ? 0 : kept_length - offset < PIECE ? kept_length - offset : PIECE;
	memset(frame, 0, FRAME);
	memcpy(frame, "Strata!\n", 8);
	put(frame, 8, 1, 2);
	put(frame, 12, (uint64_t)error, 4);
	put(frame, 16, !error && offset + piece < kept_length ? 7 : 0, 8);
	put(frame, 24, offset, 8);
	put(frame, 32, error ? 0 : kept_length, 8);
	put(frame, 44, piece, 4);
	if (piece)
		memcpy(frame + 64, kept + offset, piece);
	return 0;
}

static void *f_init(struct fuse_conn_info *conn, struct fuse_config *config)
{
	(void)conn;
	config->use_ino = 1;
	config->entry_timeout = config->attr_timeout = config->negative_timeout = 0;
	return NULL;
}

static const struct fuse_operations operations = {
	.getattr = f_getattr, .readlink = f_readlink, .mkdir = f_mkdir, .unlink = f_unlink, .rmdir = f_rmdir,
	.symlink = f_symlink, .rename = f_rename, .link = f_link, .chmod = f_chmod, .chown = f_chown,
	.truncate = f_truncate, .utimens = f_utimens, .open = f_open, .create = f_create, .read = f_read,
	.write = f_write, .release = f_release, .statfs = f_statfs, .readdir = f_readdir, .ioctl = f_ioctl,
	.getxattr = f_getxattr, .listxattr = f_listxattr, .setxattr = f_setxattr, .init = f_init,
};

int main(int argc, char **argv)
{
	if (argc < 3 || !(source = realpath(argv[1], NULL)))
		return 2;
	argv[1] = argv[0];
	return fuse_main(argc - 1, argv + 1, &operations, NULL);
}
