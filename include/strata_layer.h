/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Layers of Strata as shared objects. Plain C11, nothing to link with.
 *
 *     cc -O2 -shared -fPIC -I include -o vowels.so vowels.c
 *     strata mount '/path/vowels.so,option=value / /srv/data' /mnt
 *
 * An object exports one function, strata_layer_v1(). What it answers describes the layer: a name, options, and open(), which is called once
 * for each mount and says which hooks the layer has. A hook that is not given is the identity and costs nothing. What each hook may do,
 * and what the template does around it, is in docs/wrapfs.md.
 *
 * Rules
 * - Versions are semantic. Within a major version structures and tables only grow, at their end; those that say their size are read as
 *   far as both sides know them. An object made for a newer minor version works; it must look at strata_host.minor before it uses what is
 *   newer than that. An object of another major version is not loaded.
 * - Functions answer 0 or a number that is not negative, or a negative errno (-EACCES). Any other number is an EIO, and is logged once.
 * - Hooks are called from many threads at once. Nothing may be thrown, unwound or jumped out of a hook.
 * - What a hook is lent (structures, names, buffers) is its own until it returns. Buffers are not terminated by a NUL, and not aligned.
 * - A hook that answers what a function of the server answered passes errors on as they are, -STRATA_MAY_BLOCK too: where
 *   caller->may_block is 0, a function of the server may answer that it would have to wait, and the whole operation then begins anew.
 * - The object stays loaded until the server ends.
 */
#ifndef STRATA_LAYER_H
#define STRATA_LAYER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STRATA_MAGIC UINT64_C(0x726579616c2d5453)
#define STRATA_MAJOR 1
#define STRATA_MINOR 3

/* The longest name or target that a hook may answer, in bytes. */
#define STRATA_LONGEST 65536
/* The largest block of data, in bytes. */
#define STRATA_MAX_BLOCK 1048576
/* A hook answers its negative if caller->may_block is 0 and it has to wait: it is called again by a thread that may. */
#define STRATA_MAY_BLOCK 529

/* Some bytes; not terminated. */
struct strata_bytes {
	const uint8_t *bytes;
	size_t len;
};

/* Seconds since the epoch and nanoseconds of the second, 0 to 999999999. */
struct strata_time {
	int64_t sec;
	uint32_t nsec;
	uint32_t reserved;
};

/* Attributes, as statx(2) gives them. Fixed within a major version. */
struct strata_attr {
	uint64_t ino;
	uint64_t size;   /* bytes */
	uint64_t blocks; /* of 512 bytes */
	uint64_t rdev;
	struct strata_time atime, mtime, ctime, btime;
	uint32_t mode; /* type and permission bits */
	uint32_t nlink;
	uint32_t uid;
	uint32_t gid;
	uint32_t blksize;
	uint32_t has_btime; /* 0: btime is not known */
};

/* What strata_setattr.valid is made of. */
#define STRATA_SET_MODE (1u << 0)
#define STRATA_SET_UID (1u << 1)
#define STRATA_SET_GID (1u << 2)
#define STRATA_SET_SIZE (1u << 3)
#define STRATA_SET_ATIME (1u << 4)
#define STRATA_SET_MTIME (1u << 5)
#define STRATA_SET_ATIME_NOW (1u << 6) /* with SET_ATIME: to the present time */
#define STRATA_SET_MTIME_NOW (1u << 7)
#define STRATA_SET_KILL_SUIDGID (1u << 8) /* take set-user-id away, as a write by a user does */

/* A change of attributes. Fixed within a major version. */
struct strata_setattr {
	uint32_t valid;
	uint32_t mode;
	uint32_t uid;
	uint32_t gid;
	uint64_t size;
	struct strata_time atime, mtime;
};

/* What strata_caller.flags is made of. Since 1.3. */
/* What is done in the layer below is done as the server's user, with umask 0, and counts as the server's own: for files that a layer keeps for
 * itself. A hook sets it in a copy of the caller that it was given. */
#define STRATA_AS_SERVER (1u << 0)

/* Who calls. A hook may pass on a copy in which uid, gid, umask and flags are others. */
struct strata_caller {
	uint32_t uid;
	uint32_t gid;
	uint32_t pid; /* 0: none */
	uint32_t umask;
	uint32_t may_block; /* 0: this thread serves others, and must not be kept for more than about 100 microseconds */
	uint32_t flags;	    /* STRATA_AS_SERVER; 0 before 1.3 */
	const volatile uint8_t *cancelled; /* not 0 once the caller has given up; NULL: it can't */
};

/* An object of the layer below. */
struct strata_object {
	const struct strata_host *host;
	uint64_t id;   /* the same for ever */
	uint32_t kind; /* S_IFREG, S_IFDIR, ... */
	uint32_t reserved;
	const void *handle; /* the server's */
	/* A directory's, in the hooks of strata_names: what strata_name_store.new_state made for it. Since 1.3. */
	struct strata_bytes state;
};

/* An open file of the layer below. Since 1.3. */
struct strata_file;

/* An entry of a directory of the layer below. Since 1.3. Fixed within a major version. */
struct strata_entry {
	uint64_t cookie; /* where to go on after it */
	uint64_t id;
	uint32_t kind;
	uint32_t reserved;
	struct strata_bytes name;
};

/* How much a line of the log matters. */
enum strata_level { STRATA_ERROR = 1, STRATA_WARN = 2, STRATA_INFO = 3, STRATA_DEBUG = 4 };

/* The layer below. Since 1.3; those of an object can be called in every hook that is given a caller.
 *
 * They do what the system calls of the same name do, on the object itself: symbolic links are not followed, permissions not checked. Functions that
 * answer int answer 0 or a negative errno, unless it is said otherwise. They must not be called for objects that the layer above changes at the same
 * time in a way that the hook relies on: the template holds no lock for a hook.
 *
 * Objects and open files that these functions hand out belong to the layer until it gives them back by release() and close(): all of them before
 * strata_layer.close() returns. They may be used by any thread and in any later call, with the caller of that call. Each `made`, `found`
 * and `attr` may be NULL where it is not wanted. */
struct strata_lower {
	size_t size;
	/* The same object, to be kept. */
	int (*hold)(const struct strata_object *object, struct strata_object **held);
	/* Gives an object back. NULL is nothing; an object that a hook was called with is not to be given back. */
	void (*release)(struct strata_object *object);
	/* 1: found; 0: there is none of that name. */
	int (*lookup)(const struct strata_object *dir, const struct strata_caller *caller, struct strata_bytes name,
		      struct strata_object **found, struct strata_attr *attr);
	/* Lists the entries after cookie (0: from the start), without "." and "..", until each() answers something else than 0: that entry was not
	 * taken. Answers 0, or the negative number that each() answered. */
	int (*readdir)(const struct strata_object *dir, const struct strata_caller *caller, uint64_t cookie,
		       int (*each)(void *arg, const struct strata_entry *entry), void *arg);
	/* The answer is the length of the target; what does not fit is cut off. */
	int64_t (*readlink)(const struct strata_object *link, const struct strata_caller *caller, uint8_t *out, size_t capacity);
	/* Truncates, too. */
	int (*setattr)(const struct strata_object *object, const struct strata_caller *caller, const struct strata_setattr *set,
		       struct strata_attr *attr);
	/* flags: 1 XATTR_CREATE, 2 XATTR_REPLACE. */
	int (*setxattr)(const struct strata_object *object, const struct strata_caller *caller, struct strata_bytes name,
			struct strata_bytes value, uint32_t flags);
	/* The names, each with a NUL after it; the answer is their length, with capacity 0 too. */
	int64_t (*listxattr)(const struct strata_object *object, const struct strata_caller *caller, uint8_t *out, size_t capacity);
	int (*removexattr)(const struct strata_object *object, const struct strata_caller *caller, struct strata_bytes name);
	/* flags: O_RDONLY, O_WRONLY, O_RDWR, O_APPEND, O_TRUNC. */
	int (*open)(const struct strata_object *object, const struct strata_caller *caller, uint32_t flags, struct strata_file **file);
	/* Makes a file, -EEXIST if there is one, and opens it. mode: permission bits. */
	int (*create)(const struct strata_object *dir, const struct strata_caller *caller, struct strata_bytes name, uint32_t mode,
		      uint32_t flags, struct strata_object **made, struct strata_attr *attr, struct strata_file **file);
	/* Makes a file without a name, and opens it; link() gives it one. */
	int (*tmpfile)(const struct strata_object *dir, const struct strata_caller *caller, uint32_t mode, uint32_t flags,
		       struct strata_object **made, struct strata_attr *attr, struct strata_file **file);
	/* mode: type and permission bits. */
	int (*mknod)(const struct strata_object *dir, const struct strata_caller *caller, struct strata_bytes name, uint32_t mode,
		     uint64_t rdev, struct strata_object **made, struct strata_attr *attr);
	int (*mkdir)(const struct strata_object *dir, const struct strata_caller *caller, struct strata_bytes name, uint32_t mode,
		     struct strata_object **made, struct strata_attr *attr);
	int (*symlink)(const struct strata_object *dir, const struct strata_caller *caller, struct strata_bytes name,
		       struct strata_bytes target, struct strata_object **made, struct strata_attr *attr);
	int (*link)(const struct strata_object *dir, const struct strata_caller *caller, struct strata_bytes name,
		    const struct strata_object *target, struct strata_attr *attr);
	int (*unlink)(const struct strata_object *dir, const struct strata_caller *caller, struct strata_bytes name);
	int (*rmdir)(const struct strata_object *dir, const struct strata_caller *caller, struct strata_bytes name);
	/* flags: 1 RENAME_NOREPLACE, 2 RENAME_EXCHANGE, 4 RENAME_WHITEOUT. */
	int (*rename)(const struct strata_object *dir, const struct strata_caller *caller, struct strata_bytes name,
		      const struct strata_object *new_dir, struct strata_bytes new_name, uint32_t flags);
	/* Makes the entries of a directory durable. */
	int (*sync_directory)(const struct strata_object *dir, const struct strata_caller *caller, int data_only);
	/* How many bytes: fewer than asked for only at the end of the file. */
	int64_t (*read)(struct strata_file *file, const struct strata_caller *caller, uint8_t *out, size_t len, uint64_t offset);
	/* How many bytes were written. */
	int64_t (*write)(struct strata_file *file, const struct strata_caller *caller, struct strata_bytes data, uint64_t offset);
	int (*fsync)(struct strata_file *file, const struct strata_caller *caller, int data_only);
	int (*fallocate)(struct strata_file *file, const struct strata_caller *caller, uint32_t mode, uint64_t offset, uint64_t len);
	/* whence: 3 SEEK_DATA, 4 SEEK_HOLE. The answer is the offset. */
	int64_t (*seek)(struct strata_file *file, const struct strata_caller *caller, uint64_t offset, int whence);
	/* Closes an open file. NULL is nothing. */
	void (*close)(struct strata_file *file);
};

/* What the server offers. Objects and callers are those that a hook was called with, within that call; objects also those of strata_lower. */
struct strata_host {
	size_t size;
	uint32_t major;
	uint32_t minor;
	/* The attributes of an object, as the layer below has them. */
	int (*getattr)(const struct strata_object *object, const struct strata_caller *caller, struct strata_attr *out);
	/* An extended attribute of it; the answer is its length, with capacity 0 too. */
	int64_t (*getxattr)(const struct strata_object *object, const struct strata_caller *caller, struct strata_bytes name,
			    uint8_t *out, size_t capacity);
	/* Writes a line of UTF-8 to the log. */
	void (*log)(int level, const char *text, size_t len);
	/* The layer below. Since 1.3. */
	const struct strata_lower *lower;
	/* A path from the layer's root that leads to the object, as a hint: docs/wrapfs.md says when it is right. The answer is its length, what does
	 * not fit is cut off; -ENODATA: none is known, or the layer did not set STRATA_PATHS. Since 1.3. */
	int64_t (*path)(const struct strata_object *object, uint8_t *out, size_t capacity);
	/* Attaches state, which is not NULL, to the object, unless it has some; answers the attached one. NULL: there is none, since the layer has no
	 * strata_objects or the object is none that a hook was called with. Since 1.3. */
	void *(*attach)(const struct strata_object *object, void *state);
	/* The state that is attached to the object, or NULL. It can be used until the hook returns. Since 1.3. */
	void *(*attached)(const struct strata_object *object);
};

/* Which names mean the same entry of a directory. Since 1.2. */
enum strata_matching {
	STRATA_MATCHING_EXACT = 0, /* no two names do: different names have different encodings */
	STRATA_MATCHING_ENCODED = 1, /* names with the same encoding, under which the entry is stored and listed */
	STRATA_MATCHING_FOLDED = 2 /* names with the same folding: an entry keeps the name that it was created with */
};

/* Names, one component at a time. Each function answers the length of its result, at most STRATA_LONGEST; if that is more than
 * capacity, it is called once more with a buffer that is large enough. */
struct strata_names {
	size_t size;
	/* The name below for a name above. Must not be empty, "." or "..", nor have a "/" or NUL in it. */
	int64_t (*encode_filename)(void *self, const struct strata_caller *caller, const struct strata_object *dir,
				   struct strata_bytes name, uint8_t *out, size_t capacity);
	/* The name above for a name below; -EINVAL: it stands for none, and is not shown. */
	int64_t (*decode_filename)(void *self, const struct strata_caller *caller, const struct strata_object *dir,
				   struct strata_bytes name, uint8_t *out, size_t capacity);
	/* The targets of symbolic links: both NULL, or neither. */
	int64_t (*encode_target)(void *self, const struct strata_caller *caller, struct strata_bytes target, uint8_t *out, size_t capacity);
	int64_t (*decode_target)(void *self, const struct strata_caller *caller, struct strata_bytes target, uint8_t *out, size_t capacity);
	/* STRATA_MATCHING_*. Asked once. NULL: EXACT. The kernel caches the names of a layer that answers EXACT: if it encodes two names alike
	 * all the same, only the one that the encoding decodes to can be used, and the log says so. Since 1.2. */
	int (*matching)(void *self);
	/* What names are compared by. Must be given with FOLDED. Since 1.2. */
	int64_t (*fold_filename)(void *self, const struct strata_caller *caller, const struct strata_object *dir,
				 struct strata_bytes name, uint8_t *out, size_t capacity);
};

/* What a name below is to a strata_name_store. Since 1.3. */
enum strata_role {
	STRATA_ROLE_NAME = 0,	  /* an encoded name */
	STRATA_ROLE_LONG = 1,	  /* an object whose encoded name is in a side file */
	STRATA_ROLE_SIDE = 2,	  /* a side file */
	STRATA_ROLE_LEFTOVER = 3, /* left by an interrupted operation: not shown, and removed with its directory */
	STRATA_ROLE_OWN = 4	  /* anything else of the store's own: not shown */
};

/* How an encoded name is stored that is too long for the layer below. Since 1.3. Fixed within a major version. */
struct strata_long_name {
	uint8_t object[256]; /* the name of the object */
	uint8_t side[256];   /* the name of its side file */
	size_t object_len;   /* of these, in bytes: 1 to 255 */
	size_t side_len;
	/* What the side file holds: room for content_capacity bytes, which is 4096 more than the encoded name has. */
	uint8_t *content;
	size_t content_capacity;
	size_t content_len;
};

/* The file in each directory with what its names are encoded with. Since 1.3. Fixed within a major version. */
struct strata_state_file {
	uint8_t name[256];
	size_t name_len;
	size_t longest; /* in bytes, at most 65536: a longer one is damaged */
	uint32_t mode;	/* permission bits that it is made with */
	uint32_t reserved;
};

/* How encoded names are kept: what is done with those that are too long, and what each directory encodes its names with. The hooks say how things
 * are called and what they hold; the server does the rest (docs/wrapfs.md). Names and contents from below are hostile input. Since 1.3. */
struct strata_name_store {
	size_t size;
	/* STRATA_ROLE_*. With LONG the name of the side file, and with SIDE that of the object, are written to other, which has room for 255 bytes,
	 * and their length to other_len. */
	int (*role)(void *self, struct strata_bytes name, uint8_t *other, size_t *other_len);
	/* 1: the encoded name is stored like this; 0: as it is. Names of more than 255 bytes can't be stored as they are. */
	int (*long_name)(void *self, struct strata_bytes encoded, struct strata_long_name *out);
	/* The encoded name in the side file of an object, as for strata_names; -EINVAL: it is damaged. */
	int64_t (*encoded_name)(void *self, struct strata_bytes object, struct strata_bytes content, uint8_t *out, size_t capacity);
	/* The permission bits of side files. NULL: 0644. */
	uint32_t (*side_mode)(void *self);
	/* 1: directories have a state, in this file; 0: they have none. NULL: 0. Then the two below may be NULL. Asked once. */
	int (*state_file)(void *self, struct strata_state_file *out);
	/* The state of a new directory, as for strata_names: names are given it as strata_object.state. */
	int64_t (*new_state)(void *self, const struct strata_caller *caller, uint8_t *out, size_t capacity);
	/* 1: it can be the state of a directory; 0: it is damaged. */
	int (*is_state)(void *self, struct strata_bytes state);
};

/* The layer's own state of objects (strata_host.attach). Since 1.3. */
struct strata_objects {
	size_t size;
	/* The object is no longer in use. Called once for each attached state, when every hook that was called with the object has returned, and
	 * before strata_layer.close(). It must not wait. */
	void (*freed)(void *self, uint64_t id, void *state);
};

/* Attributes. Any of these may be NULL. Each answers 0 or a negative errno. */
struct strata_attributes {
	size_t size;
	/* Makes those of the layer below what programs see. Number and kind of an object stay what they are. */
	int (*decode_attr)(void *self, const struct strata_caller *caller, const struct strata_object *file, struct strata_attr *attr);
	/* Makes the change that a program asks for that of the layer below; what is taken out of valid is not done. */
	int (*encode_attr)(void *self, const struct strata_caller *caller, const struct strata_object *file, struct strata_setattr *set);
	/* The permission bits that a new object is made with. */
	int (*encode_mode)(void *self, const struct strata_caller *caller, const struct strata_object *dir, uint32_t kind, uint32_t *mode);
};

/* Data, a block at a time, at most block_size() bytes; the last of a file is as short as the file. For one block of one file at one
 * length the encoding is a bijection. Blocks of zeros are not given to the hooks. */
struct strata_data {
	size_t size;
	/* Bytes of a block, 1 to STRATA_MAX_BLOCK. Asked once. */
	size_t (*block_size)(void *self);
	/* 1: the data of this file are changed, 0: they are not, and the kernel reads and writes the file itself. NULL: always 1. */
	int (*applies)(void *self, const struct strata_caller *caller, const struct strata_object *file);
	/* Both buffers have len bytes and do not overlap. They answer 0 or a negative errno. */
	int (*encode_data)(void *self, const struct strata_caller *caller, const struct strata_object *file, uint64_t block,
			   const uint8_t *plain, uint8_t *encoded, size_t len);
	int (*decode_data)(void *self, const struct strata_caller *caller, const struct strata_object *file, uint64_t block,
			   const uint8_t *encoded, uint8_t *plain, size_t len);
};

/* What becomes of files below that are no containers. */
enum strata_foreign {
	STRATA_FOREIGN_PLAIN = 0, /* they are shown, read and written as they are */
	STRATA_FOREIGN_REFUSE = 1 /* they are listed, and can't be opened: EMEDIUMTYPE */
};

/* How a codec stores files. Since 1.1. Fixed within a major version. */
struct strata_storage {
	uint8_t id[8];	     /* stored in each file: those of another codec are refused with EMEDIUMTYPE */
	uint32_t block_size; /* plain bytes of a block in new files: a power of two, 512 to STRATA_MAX_BLOCK; others keep theirs */
	uint32_t foreign;    /* STRATA_FOREIGN_* */
};

/* Which block of which file: what an authenticated codec binds the block to. Since 1.1. Fixed within a major version. */
struct strata_block_at {
	uint8_t file[16]; /* the file's own random id; one that was emptied and filled again has a new one */
	uint64_t block;
};

/* Data of another size, in place of strata_data: files below are containers, which keep exact sizes, random access and holes. A block is given to
 * encode() without the zeros at its end, and one of zeros alone not at all. Since 1.1. */
struct strata_codec {
	size_t size;
	/* Says how files are stored. Asked once. 0 or a negative errno. */
	int (*storage)(void *self, struct strata_storage *out);
	/* The most bytes that encode() makes of so many: 1 to 2 * plain + 4096, and no less for more. */
	size_t (*max_encoded)(void *self, size_t plain);
	/* Answers how many bytes it made, 1 to capacity, which is max_encoded(plain.len); or a negative errno, which the program that writes gets. */
	int64_t (*encode)(void *self, const struct strata_block_at *at, struct strata_bytes plain, uint8_t *out, size_t capacity);
	/* Fills out, which is as long as plain was. -EIO if encoded is not the encoding of exactly so many bytes at this place: it must be expected
	 * to be hostile. 0 or a negative errno. */
	int (*decode)(void *self, const struct strata_block_at *at, struct strata_bytes encoded, uint8_t *out, size_t len);
};

/* Operations. A set of them has the bit 1 << kind for each. */
enum strata_op_kind {
	STRATA_LOOKUP = 0,
	STRATA_GETATTR = 1,
	STRATA_SETATTR = 2,
	STRATA_READLINK = 3,
	STRATA_READDIR = 4,
	STRATA_OPEN = 5,
	STRATA_CREATE = 6,
	STRATA_TMPFILE = 7,
	STRATA_MKNOD = 8,
	STRATA_MKDIR = 9,
	STRATA_SYMLINK = 10,
	STRATA_LINK = 11,
	STRATA_UNLINK = 12,
	STRATA_RMDIR = 13,
	STRATA_RENAME = 14,
	STRATA_GETXATTR = 15,
	STRATA_SETXATTR = 16,
	STRATA_LISTXATTR = 17,
	STRATA_REMOVEXATTR = 18,
	STRATA_REFUSED = 19,
	STRATA_STATFS = 20,
	STRATA_FSYNC = 21,
	STRATA_IOCTL = 22,
	STRATA_READ = 23,
	STRATA_WRITE = 24,
	STRATA_FLUSH = 25,
	STRATA_FALLOCATE = 26,
	STRATA_SEEK = 27,
	STRATA_COPY = 28
};

/* An operation and what it was called with. What an operation has not is 0. */
struct strata_op {
	uint32_t kind;
	uint32_t flags;			    /* OPEN, CREATE, TMPFILE: O_*; RENAME, SETXATTR: as in the system call; FSYNC: 1 for fdatasync */
	const struct strata_object *object; /* the file, or the directory of name */
	const struct strata_object *other;  /* RENAME: the new directory; LINK: the file */
	struct strata_bytes name;	    /* as programs write it; that of an extended attribute */
	struct strata_bytes new_name;	    /* RENAME */
	struct strata_bytes data;	    /* SYMLINK: the target; SETXATTR: the value; IOCTL: the argument; WRITE: plain data */
	const struct strata_setattr *set;   /* SETATTR */
	uint64_t offset;
	uint64_t len;
	uint64_t rdev;
	uint32_t mode; /* REFUSED: what was refused: 4 read, 2 write, 1 execute or search */
	uint32_t cmd;  /* IOCTL */
};

enum strata_answer_kind {
	STRATA_DONE = 0,
	STRATA_MISSING = 1, /* LOOKUP: there is no such object */
	STRATA_OBJECT = 2,  /* with attr; only as an answer of the layer below */
	STRATA_ATTR = 3,
	STRATA_BYTES = 4,
	STRATA_COUNT = 5
};

/* What an operation answered. */
struct strata_answer {
	int32_t error; /* 0, or a negative errno: then there is no more */
	uint32_t kind;
	const struct strata_object *object;
	const struct strata_attr *attr;
	struct strata_bytes data;
	uint64_t count;
};

/* An answer in place of one of the layer below. It must be what the operation can answer, else the program gets EIO. */
struct strata_reply {
	uint32_t kind; /* DONE, MISSING, ATTR, BYTES or COUNT */
	uint32_t reserved;
	struct strata_attr attr;
	uint64_t count;
	/* Adds bytes to the answer; 0 or a negative errno. */
	int (*put)(struct strata_reply *reply, const void *bytes, size_t len);
};

struct strata_operations {
	size_t size;
	/* The operations that are seen. Asked once. Others cost nothing. */
	uint64_t (*interest)(void *self);
	/* 0: go on; 1: the reply is the answer; a negative errno refuses it. NULL: always 0. */
	int (*before)(void *self, const struct strata_caller *caller, const struct strata_op *op, struct strata_reply *reply);
	/* 0: the answer stays; 1, or a negative errno: takes its place, where the operation changed nothing. NULL: always 0. */
	int (*after)(void *self, const struct strata_caller *caller, const struct strata_op *op, const struct strata_answer *answer,
		     struct strata_reply *reply);
};

struct strata_ioctls {
	size_t size;
	/* 1: it is one of the layer's own, and out_len bytes of out and result are the answer; 0: it is not, and goes to the layer below; or a
	 * negative errno. Numbers are made as by _IOC(): the kernel passes as many bytes as they say. */
	int (*ioctl)(void *self, const struct strata_caller *caller, const struct strata_object *file, uint32_t cmd, struct strata_bytes input,
		     uint8_t *out, size_t capacity, size_t *out_len, int32_t *result);
};

/* A layer as it is put on another: filled by open(). All is 0 before. */
struct strata_instance {
	size_t size; /* of the server's; nothing is written past it */
	void *self;  /* given to every hook */
	/* NULL: no such hooks. Tables live as long as the instance. */
	const struct strata_names *names;
	const struct strata_attributes *attributes;
	const struct strata_data *data;
	const struct strata_operations *operations;
	const struct strata_ioctls *ioctls;
	const struct strata_codec *codec; /* since 1.1; not together with data */
	uint64_t flags;			  /* STRATA_READ_ONLY, ...; since 1.3 */
	const struct strata_objects *objects;	   /* since 1.3 */
	const struct strata_name_store *store; /* since 1.3 */
};

/* What strata_instance.flags is made of. A server refuses flags that it does not know; one older than 1.3 knows none. */
/* Nothing is ever changed through the layer: every change answers EROFS before a hook is called, files are not opened for writing, and
 * the mount is shown as read-only. Since 1.3. */
#define STRATA_READ_ONLY (UINT64_C(1) << 0)
/* strata_host.path() is answered. Costs some memory for each object in use. Since 1.3. */
#define STRATA_PATHS (UINT64_C(1) << 1)

/* An option that a layer takes: lower-case letters, digits, "-" and "_". Fixed within a major version. */
struct strata_option {
	const char *name;
	const char *value; /* how its value is shown in the help ("N", "random|hash"); NULL: it has none */
	const char *help;  /* what it does, in sentences, with the default */
};

/* An option that was given: one that was declared, and each at most once. */
struct strata_setting {
	const char *name;
	struct strata_bytes value;
};

struct strata_layer {
	uint64_t magic; /* STRATA_MAGIC */
	uint32_t major; /* STRATA_MAJOR */
	uint32_t minor; /* STRATA_MINOR */
	size_t size;	/* sizeof(struct strata_layer) */
	const char *name;  /* letters, digits, "-" and "_" */
	const char *about; /* one line, without a full stop */
	const struct strata_option *options;
	size_t option_count;
	/* Makes an instance. Or answers a negative errno, and may say in error, as text with a NUL, what is wrong with the settings. */
	int (*open)(const struct strata_host *host, const struct strata_setting *settings, size_t setting_count,
		    struct strata_instance *instance, char *error, size_t error_capacity);
	/* Ends it, when no hook runs any more. NULL: nothing to do. */
	void (*close)(void *self);
};

/* What an object exports. Answers the same each time. */
const struct strata_layer *strata_layer_v1(void);

#ifdef __cplusplus
}
#endif
#endif
