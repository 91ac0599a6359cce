/* An NFS client for the test nfs.rs. It keeps a file open while the server changes and restarts.
 *
 * Usage: open_file URL NAME
 *
 * Opens NAME and prints "ready". Then reads commands, one on each line:
 *   read    prints the first line of the file
 *   write   writes to the beginning of the file, prints "written"
 *   rename  renames the file to NAME.renamed, prints "renamed"
 * All but the last use the file handle that the open returned. Prints the error of a command that
 * failed.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <nfsc/libnfs.h>

static const char written[] = "WRITTEN";

static int print_first_line(struct nfs_context *nfs, struct nfsfh *file)
{
	char data[256] = "";
	int len = nfs_pread(nfs, file, 0, sizeof data - 1, data);

	if (len < 0)
		return len;
	data[strcspn(data, "\n")] = 0;
	printf("%s\n", data);
	return 0;
}

static int write_file(struct nfs_context *nfs, struct nfsfh *file)
{
	int len = nfs_pwrite(nfs, file, 0, sizeof written - 1, written);

	if (len >= 0)
		len = nfs_fsync(nfs, file);
	if (len >= 0)
		printf("written\n");
	return len;
}

static int rename_file(struct nfs_context *nfs, const char *name)
{
	char to[512];
	int failed;

	snprintf(to, sizeof to, "%s.renamed", name);
	failed = nfs_rename(nfs, name, to);
	if (!failed)
		printf("renamed\n");
	return failed;
}

int main(int argc, char **argv)
{
	struct nfs_context *nfs = nfs_init_context();
	struct nfs_url *url;
	struct nfsfh *file;
	char line[64];

	if (argc != 3)
		return 2;
	url = nfs_parse_url_dir(nfs, argv[1]);
	if (!url)
		return 2;
	nfs_set_autoreconnect(nfs, -1);
	if (nfs_mount(nfs, url->server, url->path) || nfs_open(nfs, argv[2], O_RDWR, &file)) {
		printf("%s\n", nfs_get_error(nfs));
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready\n");
	while (fgets(line, sizeof line, stdin)) {
		int failed;

		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "read"))
			failed = print_first_line(nfs, file);
		else if (!strcmp(line, "write"))
			failed = write_file(nfs, file);
		else
			failed = rename_file(nfs, argv[2]);
		if (failed < 0)
			printf("%s: %s\n", line, nfs_get_error(nfs));
	}
	return 0;
}
