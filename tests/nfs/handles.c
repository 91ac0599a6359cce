/* An NFS client without caches for the test nfs.rs. It keeps file handles and directory positions
 * while the servers change and restart, and like a hard mount repeats a call until it is answered.
 * NFSv4 calls use the anonymous state id, so there is no state to reclaim.
 *
 * Usage: handles VERSION EXPORT
 *
 * Prints "ready", then reads commands, one on each line. NAME is the name of a file in the export:
 *   hold NAME       looks it up, keeps the handle
 *   read NAME       prints the first line of the file with that handle
 *   write NAME      writes "WRITTEN" to its beginning
 *   rename NAME TO  renames it in the root of the export
 *   list NAME N     prints the next names of the directory, N or more of them, each after a space,
 *                   from the position that the last such command has reached; then "more" or "end"
 * Every command but list prints one line. A failed one prints the server's error.
 */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <nfsc/libnfs.h>
#include <nfsc/libnfs-raw.h>
#include <nfsc/libnfs-raw-mount.h>
#include <nfsc/libnfs-raw-nfs.h>
#include <nfsc/libnfs-raw-nfs4.h>

#define HOST "127.0.0.1"
#define NFS_PORT 2049
#define MOUNT_PORT 20048
#define PATIENCE 60
#define REPLY_SIZE 8192

static char written[] = "WRITTEN";

struct handle {
	unsigned len;
	char data[128];
};

struct held {
	char name[64];
	struct handle handle;
	uint64_t cookie;
	char verifier[8];
};

/* A call under way. */
struct call {
	int done, lost;
	const char *error;
	struct handle *handle;
	struct held *dir;
	unsigned names;
	int eof;
	char text[256];
};

typedef int send_fn(struct rpc_context *rpc, rpc_cb cb, void *args, struct call *call);

static int version;
static struct rpc_context *nfs;

static void wait_for(struct rpc_context *rpc, struct call *call)
{
	while (!call->done) {
		struct pollfd poll_fd = { rpc_get_fd(rpc), rpc_which_events(rpc), 0 };

		if (poll(&poll_fd, 1, 100) < 0 || rpc_service(rpc, poll_fd.revents) < 0) {
			call->lost = 1;
			return;
		}
	}
}

static void connected(struct rpc_context *rpc, int status, void *data, void *private)
{
	struct call *call = private;

	call->done = 1;
	call->lost = status != RPC_STATUS_SUCCESS;
}

/* Connects to a program, until the deadline. */
static struct rpc_context *connect_to(int port, int program, int program_version, time_t deadline)
{
	for (;;) {
		struct rpc_context *rpc = rpc_init_context();
		struct call call = { 0 };

		if (!rpc_connect_port_async(rpc, HOST, port, program, program_version, connected, &call)) {
			wait_for(rpc, &call);
			if (!call.lost)
				return rpc;
		}
		rpc_destroy_context(rpc);
		if (time(NULL) > deadline) {
			printf("no connection\n");
			exit(1);
		}
		usleep(50000);
	}
}

/* Makes a call, again after each loss of the connection. Returns the server's error or NULL. */
static const char *make(send_fn *send, rpc_cb cb, void *args, struct call *call)
{
	struct call fresh = *call;
	time_t deadline = time(NULL) + PATIENCE;

	for (;;) {
		*call = fresh;
		if (!nfs)
			nfs = connect_to(NFS_PORT, NFS_PROGRAM, version, deadline);
		if (!send(nfs, cb, args, call)) {
			wait_for(nfs, call);
			if (!call->lost)
				return call->error;
		}
		rpc_destroy_context(nfs);
		nfs = NULL;
		if (time(NULL) > deadline)
			return "no answer";
	}
}

/* Notes the outcome of a call. Returns whether there is a reply without an error. */
static int succeeded(struct call *call, int status, const void *reply)
{
	call->done = 1;
	call->lost = status != RPC_STATUS_SUCCESS;
	if (call->lost)
		return 0;
	if (version == 4) {
		nfsstat4 failed = ((const COMPOUND4res *)reply)->status;

		call->error = failed == NFS4_OK ? NULL : nfsstat4_to_str(failed);
	} else {
		/* Every NFSv3 result begins with the status. */
		nfsstat3 failed = *(const nfsstat3 *)reply;

		call->error = failed == NFS3_OK ? NULL : nfsstat3_to_str(failed);
	}
	return !call->error;
}

static void keep_handle(struct handle *handle, unsigned len, const char *data)
{
	if (len > sizeof handle->data)
		abort();
	handle->len = len;
	memcpy(handle->data, data, len);
}

static void keep_text(struct call *call, unsigned len, const char *data)
{
	if (len >= sizeof call->text)
		len = sizeof call->text - 1;
	memcpy(call->text, data, len);
	call->text[len] = 0;
	call->text[strcspn(call->text, "\n")] = 0;
}

static void take_entry(struct call *call, unsigned len, const char *name, uint64_t cookie)
{
	call->dir->cookie = cookie;
	if ((len == 1 && name[0] == '.') || (len == 2 && !memcmp(name, "..", 2)))
		return;
	printf(" %.*s\n", (int)len, name);
	call->names++;
}

/* NFSv3. */

static nfs_fh3 fh3(struct handle *handle)
{
	return (nfs_fh3){ { handle->len, handle->data } };
}

static void looked_up3(struct rpc_context *rpc, int status, void *data, void *private)
{
	LOOKUP3res *res = data;
	struct call *call = private;

	if (succeeded(call, status, res))
		keep_handle(call->handle, res->LOOKUP3res_u.resok.object.data.data_len,
			    res->LOOKUP3res_u.resok.object.data.data_val);
}

static void read3(struct rpc_context *rpc, int status, void *data, void *private)
{
	READ3res *res = data;

	if (succeeded(private, status, res))
		keep_text(private, res->READ3res_u.resok.data.data_len, res->READ3res_u.resok.data.data_val);
}

static void listed3(struct rpc_context *rpc, int status, void *data, void *private)
{
	READDIR3res *res = data;
	struct call *call = private;

	if (!succeeded(call, status, res))
		return;
	memcpy(call->dir->verifier, res->READDIR3res_u.resok.cookieverf, sizeof call->dir->verifier);
	for (entry3 *entry = res->READDIR3res_u.resok.reply.entries; entry; entry = entry->nextentry)
		take_entry(call, strlen(entry->name), entry->name, entry->cookie);
	call->eof = res->READDIR3res_u.resok.reply.eof;
}

static void done3(struct rpc_context *rpc, int status, void *data, void *private)
{
	succeeded(private, status, data);
}

static int send_lookup3(struct rpc_context *rpc, rpc_cb cb, void *args, struct call *call)
{
	return rpc_nfs3_lookup_async(rpc, cb, args, call);
}

static int send_read3(struct rpc_context *rpc, rpc_cb cb, void *args, struct call *call)
{
	return rpc_nfs3_read_async(rpc, cb, args, call);
}

static int send_write3(struct rpc_context *rpc, rpc_cb cb, void *args, struct call *call)
{
	return rpc_nfs3_write_async(rpc, cb, args, call);
}

static int send_rename3(struct rpc_context *rpc, rpc_cb cb, void *args, struct call *call)
{
	return rpc_nfs3_rename_async(rpc, cb, args, call);
}

static int send_readdir3(struct rpc_context *rpc, rpc_cb cb, void *args, struct call *call)
{
	return rpc_nfs3_readdir_async(rpc, cb, args, call);
}

static void mounted(struct rpc_context *rpc, int status, void *data, void *private)
{
	mountres3 *res = data;
	struct call *call = private;

	call->done = 1;
	call->lost = status != RPC_STATUS_SUCCESS || res->fhs_status != MNT3_OK;
	if (!call->lost)
		keep_handle(call->handle, res->mountres3_u.mountinfo.fhandle.fhandle3_len,
			    res->mountres3_u.mountinfo.fhandle.fhandle3_val);
}

static int mount3(char *export, struct handle *root)
{
	struct rpc_context *rpc = connect_to(MOUNT_PORT, MOUNT_PROGRAM, MOUNT_V3, time(NULL) + PATIENCE);
	struct call call = { .handle = root };

	if (rpc_mount3_mnt_async(rpc, mounted, export, &call))
		return -1;
	wait_for(rpc, &call);
	rpc_destroy_context(rpc);
	return call.lost ? -1 : 0;
}

/* NFSv4. */

static utf8string name4(char *name)
{
	return (utf8string){ strlen(name), name };
}

static nfs_argop4 put4(struct handle *handle)
{
	nfs_argop4 op = { .argop = OP_PUTFH };

	op.nfs_argop4_u.opputfh.object = (nfs_fh4){ handle->len, handle->data };
	return op;
}

static nfs_argop4 lookup4(char *name)
{
	nfs_argop4 op = { .argop = OP_LOOKUP };

	op.nfs_argop4_u.oplookup.objname = name4(name);
	return op;
}

/* The results of the last operation. */
static nfs_resop4 *last4(COMPOUND4res *res)
{
	return &res->resarray.resarray_val[res->resarray.resarray_len - 1];
}

static void done4(struct rpc_context *rpc, int status, void *data, void *private)
{
	struct call *call = private;
	nfs_resop4 *op;

	if (!succeeded(call, status, data))
		return;
	op = last4(data);
	if (op->resop == OP_GETFH) {
		nfs_fh4 *object = &op->nfs_resop4_u.opgetfh.GETFH4res_u.resok4.object;

		keep_handle(call->handle, object->nfs_fh4_len, object->nfs_fh4_val);
	} else if (op->resop == OP_READ) {
		READ4resok *read = &op->nfs_resop4_u.opread.READ4res_u.resok4;

		keep_text(call, read->data.data_len, read->data.data_val);
	} else if (op->resop == OP_READDIR) {
		READDIR4resok *listed = &op->nfs_resop4_u.opreaddir.READDIR4res_u.resok4;

		memcpy(call->dir->verifier, listed->cookieverf, sizeof call->dir->verifier);
		for (entry4 *entry = listed->reply.entries; entry; entry = entry->nextentry)
			take_entry(call, entry->name.utf8string_len, entry->name.utf8string_val, entry->cookie);
		call->eof = listed->reply.eof;
	}
}

static int send4(struct rpc_context *rpc, rpc_cb cb, void *args, struct call *call)
{
	return rpc_nfs4_compound_async(rpc, cb, args, call);
}

static const char *make4(nfs_argop4 *ops, unsigned count, struct call *call)
{
	COMPOUND4args args = { .argarray = { count, ops } };

	return make(send4, done4, &args, call);
}

static int mount4(char *export, struct handle *root)
{
	nfs_argop4 ops[16] = { { .argop = OP_PUTROOTFH } };
	struct call call = { .handle = root };
	unsigned count = 1;

	for (char *name = strtok(export, "/"); name && count < 15; name = strtok(NULL, "/"))
		ops[count++] = lookup4(name);
	ops[count++].argop = OP_GETFH;
	return make4(ops, count, &call) ? -1 : 0;
}

/* The commands. */

static const char *look_up(struct handle *root, char *name, struct handle *found)
{
	struct call call = { .handle = found };

	if (version == 3) {
		LOOKUP3args args = { { fh3(root), name } };

		return make(send_lookup3, looked_up3, &args, &call);
	}
	nfs_argop4 ops[] = { put4(root), lookup4(name), { .argop = OP_GETFH } };
	return make4(ops, 3, &call);
}

static const char *read_line(struct handle *file, struct call *call)
{
	if (version == 3) {
		READ3args args = { .file = fh3(file), .count = sizeof call->text - 1 };

		return make(send_read3, read3, &args, call);
	}
	nfs_argop4 ops[] = { put4(file), { .argop = OP_READ } };
	ops[1].nfs_argop4_u.opread.count = sizeof call->text - 1;
	return make4(ops, 2, call);
}

static const char *write_text(struct handle *file)
{
	struct call call = { 0 };
	unsigned len = sizeof written - 1;

	if (version == 3) {
		WRITE3args args = { .file = fh3(file), .count = len, .stable = FILE_SYNC, .data = { len, written } };

		return make(send_write3, done3, &args, &call);
	}
	nfs_argop4 ops[] = { put4(file), { .argop = OP_WRITE } };
	ops[1].nfs_argop4_u.opwrite = (WRITE4args){ .stable = FILE_SYNC4, .data = { len, written } };
	return make4(ops, 2, &call);
}

static const char *rename_to(struct handle *root, char *from, char *to)
{
	struct call call = { 0 };

	if (version == 3) {
		RENAME3args args = { { fh3(root), from }, { fh3(root), to } };

		return make(send_rename3, done3, &args, &call);
	}
	nfs_argop4 ops[] = { put4(root), { .argop = OP_SAVEFH }, { .argop = OP_RENAME } };
	ops[2].nfs_argop4_u.oprename = (RENAME4args){ name4(from), name4(to) };
	return make4(ops, 3, &call);
}

static const char *list_some(struct held *dir, struct call *call)
{
	call->dir = dir;
	if (version == 3) {
		READDIR3args args = { .dir = fh3(&dir->handle), .cookie = dir->cookie, .count = REPLY_SIZE };

		memcpy(args.cookieverf, dir->verifier, sizeof dir->verifier);
		return make(send_readdir3, listed3, &args, call);
	}
	nfs_argop4 ops[] = { put4(&dir->handle), { .argop = OP_READDIR } };
	READDIR4args *args = &ops[1].nfs_argop4_u.opreaddir;
	args->cookie = dir->cookie;
	args->dircount = args->maxcount = REPLY_SIZE;
	memcpy(args->cookieverf, dir->verifier, sizeof dir->verifier);
	return make4(ops, 2, call);
}

static void list(struct held *dir, unsigned wanted)
{
	unsigned names = 0;

	for (;;) {
		struct call call = { 0 };
		const char *error = list_some(dir, &call);

		names += call.names;
		if (error || call.eof || names >= wanted) {
			printf("%s\n", error ? error : call.eof ? "end" : "more");
			return;
		}
	}
}

int main(int argc, char **argv)
{
	static struct held held[16];
	static unsigned count;
	struct handle root;
	char line[256];

	if (argc != 3)
		return 2;
	version = atoi(argv[1]);
	if (version == 3 ? mount3(argv[2], &root) : mount4(argv[2], &root)) {
		printf("mount failed\n");
		return 1;
	}
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		char command[16] = "", name[64] = "", more[64] = "";
		struct call call = { .text = "done" };
		const char *error = "unknown command";
		struct held *it = held;

		sscanf(line, "%15s %63s %63s", command, name, more);
		while (it < held + count && strcmp(it->name, name))
			it++;
		if (it == held + 16)
			return 2;
		if (it == held + count) {
			strcpy(it->name, name);
			count++;
		}
		if (!strcmp(command, "list")) {
			list(it, atoi(more));
			fflush(stdout);
			continue;
		}
		if (!strcmp(command, "hold"))
			error = look_up(&root, name, &it->handle);
		else if (!strcmp(command, "read"))
			error = read_line(&it->handle, &call);
		else if (!strcmp(command, "write"))
			error = write_text(&it->handle);
		else if (!strcmp(command, "rename"))
			error = rename_to(&root, name, more);
		printf("%s\n", error ? error : call.text);
		fflush(stdout);
	}
	return 0;
}
