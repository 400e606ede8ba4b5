/* Reads EROFS and SquashFS images. Made by cbindgen from the sources of floe-capi; do not edit. */

#ifndef FLOE_H
#define FLOE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 An image that is open. Opaque.
 */
typedef struct floe_image floe_image;

/*
 How an image is opened. All zero is right for most.
 */
typedef struct floe_open_options {
  /*
   The byte of the file at which the image begins.
   */
  uint64_t offset;
  /*
   Not 0: look for the image in the file, as in an AppImage; `offset` is then ignored.
   */
  int32_t find_offset;
  /*
   The budget of the cache of decoded blocks in bytes; 0: by the memory of the machine.
   */
  uint64_t cache_bytes;
} floe_open_options;

/*
 What `stat` says of an inode.
 */
typedef struct floe_stat {
  /*
   The inode, as the other functions take it.
   */
  uint64_t inode;
  /*
   The number that a mount shows as `st_ino`.
   */
  uint64_t inode_number;
  /*
   The size in bytes.
   */
  uint64_t size;
  /*
   What the inode takes in the image, in units of 512 bytes.
   */
  uint64_t blocks;
  /*
   The time of the last change: seconds since 1970.
   */
  int64_t mtime_seconds;
  /*
   The time of the last change: nanoseconds past the second.
   */
  uint32_t mtime_nanoseconds;
  /*
   Type and permissions, as `st_mode`.
   */
  uint32_t mode;
  /*
   The owner.
   */
  uint32_t uid;
  /*
   The group.
   */
  uint32_t gid;
  /*
   The number of hard links.
   */
  uint32_t link_count;
  /*
   The driver of a device file.
   */
  uint32_t device_major;
  /*
   The device of that driver.
   */
  uint32_t device_minor;
} floe_stat;

/*
 An entry of a directory. Valid until the callback that is given it returns.
 */
typedef struct floe_entry {
  /*
   The name. Ends with a zero byte, which `name_len` does not count.
   */
  const char *name;
  /*
   How many bytes the name has.
   */
  size_t name_len;
  /*
   The inode, as the other functions take it.
   */
  uint64_t inode;
  /*
   The number that a mount shows as `d_ino`.
   */
  uint64_t inode_number;
  /*
   The type, as in the upper bits of `st_mode` (`S_IFMT`).
   */
  uint32_t type_bits;
} floe_entry;

/*
 Is given each entry of a directory. Anything but 0 ends the listing.
 */
typedef int32_t (*floe_entry_callback)(const struct floe_entry *entry, void *context);

/*
 One of many reads.
 */
typedef struct floe_read {
  /*
   The file.
   */
  uint64_t inode;
  /*
   The first byte to read.
   */
  uint64_t offset;
  /*
   Where the bytes go.
   */
  void *buffer;
  /*
   How many bytes to read.
   */
  size_t len;
  /*
   Set by the call: how many bytes were read, or a negative error number.
   */
  ptrdiff_t result;
} floe_read;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 What went wrong in the last call of this thread that failed, in one line. Valid until the next call of this thread.
 */
const char *floe_error_text(void);

/*
 The version of the library: "0.1.0".
 */
const char *floe_version(void);

/*
 Opens the image in the file `path`. `options` may be NULL. Gives NULL where it cannot be opened.

 # Safety
 `path` is a string; `options` is NULL or points to options.
 */
struct floe_image *floe_open(const char *path, const struct floe_open_options *options);

/*
 Closes an image. No other thread may be using it. NULL is passed over.

 # Safety
 `image` is NULL or comes from `floe_open`, and is not used again.
 */
void floe_close(struct floe_image *image);

/*
 Finds the inode under `path`. Symbolic links within the path are followed, inside the image; one at its end where
 `follow` is not 0.

 # Safety
 `image` comes from `floe_open`; `path` is a string; `inode` points to room for the answer.
 */
int32_t floe_lookup(const struct floe_image *image,
                    const char *path,
                    int32_t follow,
                    uint64_t *inode);

/*
 Says what `stat` says of an inode.

 # Safety
 `image` comes from `floe_open`; `stat` points to room for the answer.
 */
int32_t floe_stat_inode(const struct floe_image *image, uint64_t inode, struct floe_stat *stat);

/*
 Gives each entry of a directory, but `.` and `..`, to `callback`, until it returns anything but 0, which is then the
 result.

 # Safety
 `image` comes from `floe_open`; `callback` may be called with `context`.
 */
int32_t floe_readdir(const struct floe_image *image,
                     uint64_t inode,
                     floe_entry_callback callback,
                     void *context);

/*
 Reads up to `len` bytes of a file from `offset` on, and says how many: fewer only at its end.

 # Safety
 `image` comes from `floe_open`; `buffer` has room for `len` bytes.
 */
ptrdiff_t floe_pread(const struct floe_image *image,
                     uint64_t inode,
                     void *buffer,
                     size_t len,
                     uint64_t offset);

/*
 Performs many reads on all CPUs, and sets the result of each. Gives how many of them failed.

 # Safety
 `image` comes from `floe_open`; `reads` points to `count` reads, whose buffers have room and do not overlap.
 */
ptrdiff_t floe_pread_batch(const struct floe_image *image, struct floe_read *reads, size_t count);

/*
 Copies the target of a symbolic link, without a zero byte at its end, and says how long it is. With `size` 0 it only
 says so; where `size` is too small, the error is ERANGE.

 # Safety
 `image` comes from `floe_open`; `buffer` has room for `size` bytes.
 */
ptrdiff_t floe_readlink(const struct floe_image *image,
                        uint64_t inode,
                        char *buffer,
                        size_t size);

/*
 Copies the value of an extended attribute, as getxattr(2) does: with `size` 0 it only says how long it is. ENODATA
 where there is no such attribute.

 # Safety
 `image` comes from `floe_open`; `name` is a string; `buffer` has room for `size` bytes.
 */
ptrdiff_t floe_getxattr(const struct floe_image *image,
                        uint64_t inode,
                        const char *name,
                        void *buffer,
                        size_t size);

/*
 Copies the names of all extended attributes, each with a zero byte at its end, as listxattr(2) does: with `size` 0 it
 only says how long they are.

 # Safety
 `image` comes from `floe_open`; `buffer` has room for `size` bytes.
 */
ptrdiff_t floe_listxattr(const struct floe_image *image,
                         uint64_t inode,
                         char *buffer,
                         size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FLOE_H */
