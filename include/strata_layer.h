/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Interface of plugins: shared objects that contain a layer of Strata. Plain C11, no library.
 *
 *     cc -O2 -shared -fPIC -I include -o vowels.so vowels.c
 *     strata mount '/path/vowels.so,option=value / /srv/data' /mnt
 *
 * A plugin exports one function, strata_layer_v1(). It returns a description of the layer: a name,
 * options, and open(), which is called once for each mount and sets the layer's hooks. A missing
 * hook is the identity and costs nothing. docs/wrapfs.md describes each hook, and what the template
 * (the part of the server that calls the hooks) does around it.
 *
 * "Object" means an object of the tree: a file, directory, symbolic link or special file.
 *
 * Rules
 * - Versions are semantic. Within a major version, structures and tables only grow, at their end.
 *   Each side reads a structure that contains its size as far as both sides know it. A server loads
 *   a plugin built for a newer minor version; the plugin must check strata_host.minor before it
 *   uses newer fields. A server refuses a plugin of another major version.
 * - Functions return 0 or a positive number, or a negative errno (-EACCES). Any other value causes
 *   EIO, and one log line.
 * - Hooks are called from many threads at once. Don't throw, unwind or jump out of a hook.
 * - Arguments of a hook (structures, names, buffers) are valid until it returns. Strings of bytes
 *   are not NUL-terminated, and buffers are not aligned.
 * - A hook that fails because a function of the server failed returns the same error. This includes
 *   -STRATA_MAY_BLOCK: where caller->may_block is 0, a function of the server returns it instead of
 *   waiting. The whole operation then starts again on another thread.
 * - The plugin remains loaded until the server exits.
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

/* Maximum length of a name or target that a hook returns, in bytes. */
#define STRATA_LONGEST 65536
/* Maximum size of a block of data, in bytes. */
#define STRATA_MAX_BLOCK 1048576
/* A hook that has to wait while caller->may_block is 0 returns -STRATA_MAY_BLOCK. It is then called
 * again on a thread that may block. */
#define STRATA_MAY_BLOCK 529

/* A string of bytes, not NUL-terminated. */
struct strata_bytes {
	const uint8_t *bytes;
	size_t len;
};

/* Seconds since the epoch, and nanoseconds, 0 to 999999999. */
struct strata_time {
	int64_t sec;
	uint32_t nsec;
	uint32_t reserved;
};

/* Attributes, as of statx(2). Fixed within a major version. */
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
	uint32_t has_btime; /* 0: btime is unknown */
};

/* Bits of strata_setattr.valid. */
#define STRATA_SET_MODE (1u << 0)
#define STRATA_SET_UID (1u << 1)
#define STRATA_SET_GID (1u << 2)
#define STRATA_SET_SIZE (1u << 3)
#define STRATA_SET_ATIME (1u << 4)
#define STRATA_SET_MTIME (1u << 5)
#define STRATA_SET_ATIME_NOW (1u << 6) /* with SET_ATIME: the current time */
#define STRATA_SET_MTIME_NOW (1u << 7)
#define STRATA_SET_KILL_SUIDGID (1u << 8) /* clear the set-user-ID bit, as a write by a user does */

/* A change of attributes. Fixed within a major version. */
struct strata_setattr {
	uint32_t valid;
	uint32_t mode;
	uint32_t uid;
	uint32_t gid;
	uint64_t size;
	struct strata_time atime, mtime;
};

/* Bits of strata_caller.flags. Since 1.3. */
/* Calls of the layer below run as the server's user, with umask 0: for files that a layer keeps for
 * itself. A hook sets this in a copy of the caller that it received. */
#define STRATA_AS_SERVER (1u << 0)

/* The calling process. A hook may pass a copy with other values of uid, gid, umask and flags to
 * functions of the server. */
struct strata_caller {
	uint32_t uid;
	uint32_t gid;
	uint32_t pid; /* 0: none */
	uint32_t umask;
	uint32_t may_block; /* 0: this thread serves other callers; return within about 100 microseconds */
	uint32_t flags;	    /* STRATA_AS_SERVER; 0 before 1.3 */
	const volatile uint8_t *cancelled; /* not 0 once the caller was interrupted; NULL: it can't be */
};

/* An object of the tree, in the layer below. */
struct strata_object {
	const struct strata_host *host;
	uint64_t id;   /* never changes */
	uint32_t kind; /* S_IFREG, S_IFDIR, ... */
	uint32_t reserved;
	const void *handle; /* private to the server */
	/* In hooks of strata_names: the state of a directory (strata_name_store). Since 1.3. */
	struct strata_bytes state;
};

/* An open file of the layer below. Since 1.3. */
struct strata_file;

/* An entry of a directory of the layer below. Since 1.3. Fixed within a major version. */
struct strata_entry {
	uint64_t cookie; /* position after this entry */
	uint64_t id;
	uint32_t kind;
	uint32_t reserved;
	struct strata_bytes name;
};

/* Levels of log lines. */
enum strata_level { STRATA_ERROR = 1, STRATA_WARN = 2, STRATA_INFO = 3, STRATA_DEBUG = 4 };

/* Access to the layer below. Since 1.3. Functions that take a caller can be called in every hook
 * that receives one.
 *
 * They do the same as the system calls of their names, on the object itself: they don't follow
 * symbolic links, and don't check permissions. Functions of type int return 0 or a negative errno
 * unless their comment differs. The template holds no lock during a hook: don't rely on an object
 * that other operations may change at the same time.
 *
 * The layer owns the objects and open files that these functions return, until it passes them to
 * release() and close(). It must do so with all of them before strata_layer.close() returns. They
 * may be used by any thread and in any later call, with the caller of that call. `made`, `found`
 * and `attr` may be NULL if the result is not needed. */
struct strata_lower {
	size_t size;
	/* Returns a reference to the object that outlives the hook. */
	int (*hold)(const struct strata_object *object, struct strata_object **held);
	/* Releases an object that the layer owns, not one that a hook was called with. Ignores NULL. */
	void (*release)(struct strata_object *object);
	/* Returns 1 if the name exists, else 0. */
	int (*lookup)(const struct strata_object *dir, const struct strata_caller *caller, struct strata_bytes name,
		      struct strata_object **found, struct strata_attr *attr);
	/* Calls each() for the entries after cookie (0: from the start), without "." and "..", until it
	 * returns a value other than 0; that entry does not count as listed. Returns 0, or the negative
	 * value that each() returned. */
	int (*readdir)(const struct strata_object *dir, const struct strata_caller *caller, uint64_t cookie,
		       int (*each)(void *arg, const struct strata_entry *entry), void *arg);
	/* Returns the length of the target; writes at most capacity bytes of it. */
	int64_t (*readlink)(const struct strata_object *link, const struct strata_caller *caller, uint8_t *out, size_t capacity);
	/* Also truncates, with STRATA_SET_SIZE. */
	int (*setattr)(const struct strata_object *object, const struct strata_caller *caller, const struct strata_setattr *set,
		       struct strata_attr *attr);
	/* flags: 1 XATTR_CREATE, 2 XATTR_REPLACE. */
	int (*setxattr)(const struct strata_object *object, const struct strata_caller *caller, struct strata_bytes name,
			struct strata_bytes value, uint32_t flags);
	/* Writes the names, each followed by a NUL. Returns their total length, also if capacity is 0. */
	int64_t (*listxattr)(const struct strata_object *object, const struct strata_caller *caller, uint8_t *out, size_t capacity);
	int (*removexattr)(const struct strata_object *object, const struct strata_caller *caller, struct strata_bytes name);
	/* flags: O_RDONLY, O_WRONLY, O_RDWR, O_APPEND, O_TRUNC. */
	int (*open)(const struct strata_object *object, const struct strata_caller *caller, uint32_t flags, struct strata_file **file);
	/* Creates and opens a file; -EEXIST if the name exists. mode: permission bits. */
	int (*create)(const struct strata_object *dir, const struct strata_caller *caller, struct strata_bytes name, uint32_t mode,
		      uint32_t flags, struct strata_object **made, struct strata_attr *attr, struct strata_file **file);
	/* Creates and opens a file without a name; link() can give it one. */
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
	/* Makes the entries of a directory durable, as fsync(2) does. */
	int (*sync_directory)(const struct strata_object *dir, const struct strata_caller *caller, int data_only);
	/* Returns the number of bytes read: less than len only at the end of the file. */
	int64_t (*read)(struct strata_file *file, const struct strata_caller *caller, uint8_t *out, size_t len, uint64_t offset);
	/* Returns the number of bytes written. */
	int64_t (*write)(struct strata_file *file, const struct strata_caller *caller, struct strata_bytes data, uint64_t offset);
	int (*fsync)(struct strata_file *file, const struct strata_caller *caller, int data_only);
	int (*fallocate)(struct strata_file *file, const struct strata_caller *caller, uint32_t mode, uint64_t offset, uint64_t len);
	/* whence: 3 SEEK_DATA, 4 SEEK_HOLE. Returns the offset. */
	int64_t (*seek)(struct strata_file *file, const struct strata_caller *caller, uint64_t offset, int whence);
	/* Closes an open file. Ignores NULL. */
	void (*close)(struct strata_file *file);
};

/* Functions of the server. Their arguments are the objects and callers that the current hook was
 * called with, or objects from strata_lower. */
struct strata_host {
	size_t size;
	uint32_t major;
	uint32_t minor;
	/* Returns the attributes of an object in the layer below. */
	int (*getattr)(const struct strata_object *object, const struct strata_caller *caller, struct strata_attr *out);
	/* Reads an extended attribute. Returns its length, also if capacity is 0. */
	int64_t (*getxattr)(const struct strata_object *object, const struct strata_caller *caller, struct strata_bytes name,
			    uint8_t *out, size_t capacity);
	/* Writes a line of UTF-8 to the log. */
	void (*log)(int level, const char *text, size_t len);
	/* The layer below. Since 1.3. */
	const struct strata_lower *lower;
	/* Writes at most capacity bytes of a path from the layer's root to the object, as a hint
	 * (docs/wrapfs.md). Returns its length; -ENODATA if no path is known, or if the layer did not set
	 * STRATA_PATHS. Since 1.3. */
	int64_t (*path)(const struct strata_object *object, uint8_t *out, size_t capacity);
	/* Attaches state, which must not be NULL, to the object unless it already has some, and returns
	 * the attached state. Returns NULL if the layer has no strata_objects, or for an object that no
	 * hook was called with. Since 1.3. */
	void *(*attach)(const struct strata_object *object, void *state);
	/* Returns the attached state, or NULL. It is valid until the hook returns. Since 1.3. */
	void *(*attached)(const struct strata_object *object);
};

/* Which names mean the same entry of a directory. Since 1.2. */
enum strata_matching {
	STRATA_MATCHING_EXACT = 0, /* none: different names have different encodings */
	STRATA_MATCHING_ENCODED = 1, /* names with the same encoding; the entry is stored under it */
	STRATA_MATCHING_FOLDED = 2 /* names with the same folding; the entry keeps the name that it was created with */
};

/* Names, one component at a time. Each function returns the length of its result, at most
 * STRATA_LONGEST. If that is more than capacity, it is called once more with a larger buffer. */
struct strata_names {
	size_t size;
	/* Encodes the name that programs use to the name below. The result must not be empty, "." or "..",
	 * and must not contain a "/" or NUL. */
	int64_t (*encode_filename)(void *self, const struct strata_caller *caller, const struct strata_object *dir,
				   struct strata_bytes name, uint8_t *out, size_t capacity);
	/* Decodes a name below. -EINVAL: it is not an encoded name, and its entry is hidden. */
	int64_t (*decode_filename)(void *self, const struct strata_caller *caller, const struct strata_object *dir,
				   struct strata_bytes name, uint8_t *out, size_t capacity);
	/* Encode and decode targets of symbolic links. Both NULL, or neither. */
	int64_t (*encode_target)(void *self, const struct strata_caller *caller, struct strata_bytes target, uint8_t *out, size_t capacity);
	int64_t (*decode_target)(void *self, const struct strata_caller *caller, struct strata_bytes target, uint8_t *out, size_t capacity);
	/* Returns STRATA_MATCHING_*. Called once. NULL: EXACT. The kernel caches the names of a layer that
	 * returns EXACT. If such a layer encodes two names alike, only the one that the encoding decodes to
	 * can be used, and an error is logged. Since 1.2. */
	int (*matching)(void *self);
	/* Returns the form by which FOLDED compares names, and is required with it. Since 1.2. */
	int64_t (*fold_filename)(void *self, const struct strata_caller *caller, const struct strata_object *dir,
				 struct strata_bytes name, uint8_t *out, size_t capacity);
};

/* The role of a name below in a strata_name_store. Since 1.3. */
enum strata_role {
	STRATA_ROLE_NAME = 0,	  /* an encoded name */
	STRATA_ROLE_LONG = 1,	  /* an object whose encoded name is in a side file */
	STRATA_ROLE_SIDE = 2,	  /* a side file */
	STRATA_ROLE_LEFTOVER = 3, /* left by an interrupted operation: hidden, and removed with its directory */
	STRATA_ROLE_OWN = 4	  /* any other name of the store: hidden */
};

/* How an encoded name is stored that is too long for the layer below: a short name for the object,
 * and a side file that contains the encoded name. Since 1.3. Fixed within a major version. */
struct strata_long_name {
	uint8_t object[256]; /* the name of the object */
	uint8_t side[256];   /* the name of its side file */
	size_t object_len;   /* lengths in bytes, 1 to 255 */
	size_t side_len;
	/* A buffer for the content of the side file. Its capacity is the encoded name's length plus 4096. */
	uint8_t *content;
	size_t content_capacity;
	size_t content_len;
};

/* The file in each directory with its state, with which its names are encoded. Since 1.3. Fixed
 * within a major version. */
struct strata_state_file {
	uint8_t name[256];
	size_t name_len;
	size_t longest; /* maximum size in bytes, up to 65536; a larger file is damaged */
	uint32_t mode;	/* permission bits of a new file */
	uint32_t reserved;
};

/* How encoded names are stored: names that are too long, and the state with which each directory
 * encodes its names. The hooks define the names and contents of files; the server creates, reads,
 * moves and removes them (docs/wrapfs.md). Names and contents from below are hostile input. Since
 * 1.3. */
struct strata_name_store {
	size_t size;
	/* Returns STRATA_ROLE_*. For LONG, writes the name of the side file to other; for SIDE, the name
	 * of the object. other has 255 bytes. Writes the length to other_len. */
	int (*role)(void *self, struct strata_bytes name, uint8_t *other, size_t *other_len);
	/* Returns 1 if the encoded name is stored as in out, 0 if it is stored unchanged. Names of more
	 * than 255 bytes can't be stored unchanged. */
	int (*long_name)(void *self, struct strata_bytes encoded, struct strata_long_name *out);
	/* Reads the encoded name from the content of an object's side file. Returns its length, as the
	 * functions of strata_names; -EINVAL if the content is damaged. */
	int64_t (*encoded_name)(void *self, struct strata_bytes object, struct strata_bytes content, uint8_t *out, size_t capacity);
	/* Returns the permission bits of new side files. NULL: 0644. */
	uint32_t (*side_mode)(void *self);
	/* Returns 1 if directories have state, in this file, else 0. Called once. NULL: 0; then the two
	 * functions below may be NULL, too. */
	int (*state_file)(void *self, struct strata_state_file *out);
	/* Creates the state of a new directory. Returns its length, as the functions of strata_names do.
	 * These receive the state in strata_object.state. */
	int64_t (*new_state)(void *self, const struct strata_caller *caller, uint8_t *out, size_t capacity);
	/* Returns 1 if the bytes are a valid state of a directory, 0 if they are damaged. */
	int (*is_state)(void *self, struct strata_bytes state);
};

/* State that the layer attaches to objects (strata_host.attach). Since 1.3. */
struct strata_objects {
	size_t size;
	/* The object is no longer in use. Called once for each attached state, after every hook that was
	 * called with the object has returned, and before strata_layer.close(). It must not wait. */
	void (*freed)(void *self, uint64_t id, void *state);
};

/* Attributes. Each function may be NULL, and returns 0 or a negative errno. */
struct strata_attributes {
	size_t size;
	/* Decodes the attributes of the layer below to those that programs receive. The server restores
	 * the number and type of the object. */
	int (*decode_attr)(void *self, const struct strata_caller *caller, const struct strata_object *file, struct strata_attr *attr);
	/* Encodes a change for the layer below. An attribute whose bit is cleared in valid is not
	 * changed. */
	int (*encode_attr)(void *self, const struct strata_caller *caller, const struct strata_object *file, struct strata_setattr *set);
	/* Encodes the permission bits of a new object. */
	int (*encode_mode)(void *self, const struct strata_caller *caller, const struct strata_object *dir, uint32_t kind, uint32_t *mode);
};

/* Data, in blocks of block_size() bytes; the last block is shorter if the file ends inside it. For
 * one block of one file at one length, the encoding must be a bijection. Blocks of zeros never
 * reach the hooks. */
struct strata_data {
	size_t size;
	/* Returns the size of a block in bytes, 1 to STRATA_MAX_BLOCK. Called once. */
	size_t (*block_size)(void *self);
	/* Returns 1 if the data of this file is encoded. If 0, the kernel reads and writes the file below
	 * directly. NULL: always 1. */
	int (*applies)(void *self, const struct strata_caller *caller, const struct strata_object *file);
	/* Both buffers have len bytes and do not overlap. These return 0 or a negative errno. */
	int (*encode_data)(void *self, const struct strata_caller *caller, const struct strata_object *file, uint64_t block,
			   const uint8_t *plain, uint8_t *encoded, size_t len);
	int (*decode_data)(void *self, const struct strata_caller *caller, const struct strata_object *file, uint64_t block,
			   const uint8_t *encoded, uint8_t *plain, size_t len);
};

/* The policy for files below that are no containers. */
enum strata_foreign {
	STRATA_FOREIGN_PLAIN = 0, /* they are shown, read and written unchanged */
	STRATA_FOREIGN_REFUSE = 1 /* they are listed, but not opened: EMEDIUMTYPE */
};

/* How a codec stores files. Since 1.1. Fixed within a major version. */
struct strata_storage {
	uint8_t id[8];	     /* stored in each file; files of another codec are refused with EMEDIUMTYPE */
	uint32_t block_size; /* plain bytes of a block in new files: a power of two, 512 to STRATA_MAX_BLOCK */
	uint32_t foreign;    /* STRATA_FOREIGN_* */
};

/* A block of a file, to which an authenticated codec binds the data. Since 1.1. Fixed within a
 * major version. */
struct strata_block_at {
	uint8_t file[16]; /* the file's random id; a file that was truncated to 0 and filled again has a new one */
	uint64_t block;
};

/* Data of another size, instead of strata_data. Files below are containers, which provide exact
 * sizes, random access and holes. encode() receives a block without the zeros at its end, and never
 * a block of zeros only. Since 1.1. */
struct strata_codec {
	size_t size;
	/* Writes how files are stored. Called once. Returns 0 or a negative errno. */
	int (*storage)(void *self, struct strata_storage *out);
	/* Returns the maximum number of bytes that encode() makes of plain bytes: 1 to 2 * plain + 4096.
	 * It must not decrease as plain increases. */
	size_t (*max_encoded)(void *self, size_t plain);
	/* Returns the number of encoded bytes, 1 to capacity, which is max_encoded(plain.len); or a
	 * negative errno, which the writing program receives. */
	int64_t (*encode)(void *self, const struct strata_block_at *at, struct strata_bytes plain, uint8_t *out, size_t capacity);
	/* Fills out, which has the length of the plain block. Returns 0 or a negative errno: -EIO if
	 * encoded is not the encoding of exactly len bytes of this block. encoded is hostile input. */
	int (*decode)(void *self, const struct strata_block_at *at, struct strata_bytes encoded, uint8_t *out, size_t len);
};

/* Kinds of operations. A set of operations has the bit 1 << kind for each. */
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

/* An operation and its arguments. Fields that the operation does not have are 0. */
struct strata_op {
	uint32_t kind;
	uint32_t flags;			    /* OPEN, CREATE, TMPFILE: O_*; RENAME, SETXATTR: as in the system call; FSYNC: 1 for fdatasync */
	const struct strata_object *object; /* the file, or the directory of name */
	const struct strata_object *other;  /* RENAME: the new directory; LINK: the file */
	struct strata_bytes name;	    /* the plain name, or the name of an extended attribute */
	struct strata_bytes new_name;	    /* RENAME */
	struct strata_bytes data;	    /* SYMLINK: the target; SETXATTR: the value; IOCTL: the argument; WRITE: plain data */
	const struct strata_setattr *set;   /* SETATTR */
	uint64_t offset;
	uint64_t len;
	uint64_t rdev;
	uint32_t mode; /* as in the system call; REFUSED: the refused permissions: 4 read, 2 write, 1 execute or search */
	uint32_t cmd;  /* IOCTL */
};

enum strata_answer_kind {
	STRATA_DONE = 0,
	STRATA_MISSING = 1, /* LOOKUP: the name does not exist */
	STRATA_OBJECT = 2,  /* with attr; not in a strata_reply */
	STRATA_ATTR = 3,
	STRATA_BYTES = 4,
	STRATA_COUNT = 5
};

/* The result of an operation in the layer below. */
struct strata_answer {
	int32_t error; /* 0; or a negative errno, then the other fields are unused */
	uint32_t kind;
	const struct strata_object *object;
	const struct strata_attr *attr;
	struct strata_bytes data;
	uint64_t count;
};

/* A reply in place of the layer below. If the operation can't have a reply of that kind, the
 * program receives EIO. */
struct strata_reply {
	uint32_t kind; /* DONE, MISSING, ATTR, BYTES or COUNT */
	uint32_t reserved;
	struct strata_attr attr;
	uint64_t count;
	/* Appends bytes to the reply. Returns 0 or a negative errno. */
	int (*put)(struct strata_reply *reply, const void *bytes, size_t len);
};

struct strata_operations {
	size_t size;
	/* Returns the set of operations to observe. Called once. Others cost nothing. */
	uint64_t (*interest)(void *self);
	/* Runs before the operation. Returns 0 to proceed, 1 to return *reply without calling the layer
	 * below, or a negative errno to refuse the operation. NULL: always 0. */
	int (*before)(void *self, const struct strata_caller *caller, const struct strata_op *op, struct strata_reply *reply);
	/* Runs after the operation. Returns 0 to keep the result. If the operation changes nothing, 1
	 * replaces the result by *reply, and a negative errno by this error. NULL: always 0. */
	int (*after)(void *self, const struct strata_caller *caller, const struct strata_op *op, const struct strata_answer *answer,
		     struct strata_reply *reply);
};

struct strata_ioctls {
	size_t size;
	/* Returns 1 for an ioctl of this layer, with the reply in *result and *out_len bytes of out; 0 to
	 * pass the ioctl to the layer below; or a negative errno. Build cmd with _IOC(): the kernel copies
	 * as many bytes in and out as it encodes. */
	int (*ioctl)(void *self, const struct strata_caller *caller, const struct strata_object *file, uint32_t cmd, struct strata_bytes input,
		     uint8_t *out, size_t capacity, size_t *out_len, int32_t *result);
};

/* A mounted layer. open() fills it; all fields but size are 0 before. */
struct strata_instance {
	size_t size; /* size in the server; write nothing past it */
	void *self;  /* passed to every hook */
	/* NULL: no such hooks. Tables must live as long as the instance. */
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

/* Bits of strata_instance.flags. A server refuses unknown flags; before 1.3 it has no such field. */
/* The layer is read-only: every change fails with EROFS before a hook is called, files are not
 * opened for writing, and the mount is shown as read-only. Since 1.3. */
#define STRATA_READ_ONLY (UINT64_C(1) << 0)
/* strata_host.path() returns paths. Costs some memory for each object in use. Since 1.3. */
#define STRATA_PATHS (UINT64_C(1) << 1)

/* An option of a layer. Its name has 1 to 64 letters, digits, "-" and "_". Fixed within a major
 * version. */
struct strata_option {
	const char *name;
	const char *value; /* placeholder for its value in the help ("N", "random|hash"); NULL: it has no value */
	const char *help;  /* its effect and its default, in sentences */
};

/* An option that the user gave: one of the declared ones, each at most once. */
struct strata_setting {
	const char *name;
	struct strata_bytes value;
};

struct strata_layer {
	uint64_t magic; /* STRATA_MAGIC */
	uint32_t major; /* STRATA_MAJOR */
	uint32_t minor; /* STRATA_MINOR */
	size_t size;	/* sizeof(struct strata_layer) */
	const char *name;  /* 1 to 64 letters, digits, "-" and "_" */
	const char *about; /* one line, without a full stop */
	const struct strata_option *options;
	size_t option_count;
	/* Creates an instance. Returns 0; or a negative errno, and optionally writes to error, as a
	 * NUL-terminated string, the problem with the settings. */
	int (*open)(const struct strata_host *host, const struct strata_setting *settings, size_t setting_count,
		    struct strata_instance *instance, char *error, size_t error_capacity);
	/* Ends an instance, after its last hook has returned: when the file system has been unmounted, or
	 * the branch of a union with this layer was removed. It should not take longer than a second. Not
	 * called if the server is killed. NULL: nothing to do. */
	void (*close)(void *self);
};

/* The function that a plugin exports. It must always return the same pointer. */
const struct strata_layer *strata_layer_v1(void);

#ifdef __cplusplus
}
#endif
#endif
