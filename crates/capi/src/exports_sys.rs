//! The exported functions.

use std::{
    ffi::{CStr, CString, OsStr, c_char, c_void},
    os::unix::ffi::OsStrExt,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr, slice,
};

use floe::{Image, Nid, Offset, OpenOptions, ReadRequest};

use crate::{
    error::{Failure, with_text},
    types::{floe_entry, floe_image, floe_open_options, floe_read, floe_stat},
};

/// Called with each entry of a directory. A result other than 0 ends the listing.
pub type floe_entry_callback = Option<unsafe extern "C" fn(entry: *const floe_entry, context: *mut c_void) -> i32>;

/// The text of the last error of a call by this thread: one line. Valid until this thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn floe_error_text() -> *const c_char {
    with_text(|text| text.as_ptr())
}

/// The version of the library: "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn floe_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Opens the image in the file `path`. `options` may be NULL. Returns NULL if the image cannot be opened.
///
/// # Safety
/// `path` is a string; `options` is NULL or points to options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_open(path: *const c_char, options: *const floe_open_options) -> *mut floe_image {
    // SAFETY: the caller guarantees it (see "Safety").
    opened(|| unsafe {
        let path = OsStr::from_bytes(text(path)?.to_bytes());
        Ok(Image::open(path, &options_of(options))?)
    })
}

/// Opens the image at a URL: `https://…`, `s3://bucket/key`, `gs://…`, `az://…` or `oci://registry/repository`. Threads
/// of this process fetch bytes as they are read, into the user's disk cache for remote images. `options` may be NULL.
/// Returns NULL if the image cannot be opened.
///
/// # Safety
/// `url` is a string; `options` is NULL or points to options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_open_url(url: *const c_char, options: *const floe_open_options) -> *mut floe_image {
    // SAFETY: the caller guarantees it (see "Safety").
    opened(|| unsafe {
        let url = text(url)?.to_str().map_err(|_| Failure::of(libc::EINVAL))?;
        Ok(Image::open_url(url, &options_of(options))?)
    })
}

/// Closes an image. No other thread may be using it. Closing NULL has no effect.
///
/// # Safety
/// `image` is NULL or comes from `floe_open`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_close(image: *mut floe_image) {
    if !image.is_null() {
        // SAFETY: the pointer comes from Box::into_raw in `opened`, and the caller does not use it again.
        drop(unsafe { Box::from_raw(image) });
    }
}

/// Finds the inode at `path`. Follows symbolic links within the path, inside the image, and a link at the end of the
/// path if `follow` is not 0.
///
/// # Safety
/// `image` comes from `floe_open`; `path` is a string; `inode` points to memory for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_lookup(
    image: *const floe_image,
    path: *const c_char,
    follow: i32,
    inode: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller guarantees it (see "Safety").
        let (image, path, inode) =
            unsafe { (of(image)?, text(path)?, inode.as_mut().ok_or(Failure::of(libc::EFAULT))?) };
        let path = path.to_bytes();
        *inode = if follow == 0 { image.resolve_link(path)? } else { image.resolve(path)? }.0;
        Ok(0)
    })
}

/// Reads the attributes of an inode, as `stat` returns them.
///
/// # Safety
/// `image` comes from `floe_open`; `stat` points to memory for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_stat_inode(image: *const floe_image, inode: u64, stat: *mut floe_stat) -> i32 {
    call(|| {
        // SAFETY: the caller guarantees it (see "Safety").
        let (image, stat) = unsafe { (of(image)?, stat.as_mut().ok_or(Failure::of(libc::EFAULT))?) };
        *stat = image.attr(Nid(inode))?.into();
        Ok(0)
    })
}

/// Calls `callback` for each entry of a directory except `.` and `..`. If a call returns a value other than 0, the
/// listing ends and returns that value.
///
/// # Safety
/// `image` comes from `floe_open`; `callback` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_readdir(
    image: *const floe_image,
    inode: u64,
    callback: floe_entry_callback,
    context: *mut c_void,
) -> i32 {
    call(|| {
        // SAFETY: the caller guarantees it (see "Safety").
        let image = unsafe { of(image)? };
        let callback = callback.ok_or(Failure::of(libc::EFAULT))?;
        for entry in image.read_dir(Nid(inode)) {
            let entry = entry?;
            let name_len = entry.name.len();
            // The formats' readers refuse names with a zero byte.
            let name = CString::new(entry.name).map_err(|_| Failure::of(libc::EUCLEAN))?;
            let entry = floe_entry {
                name: name.as_ptr(),
                name_len,
                inode: entry.nid.0,
                inode_number: entry.inode_number,
                type_bits: u32::from(entry.file_type.mode_bits()),
            };
            // SAFETY: the caller passes a callback that accepts these arguments; the name lives until the callback
            // returns.
            let result = unsafe { callback(&raw const entry, context) };
            if result != 0 {
                return Ok(result);
            }
        }
        Ok(0)
    })
}

/// Reads up to `len` bytes of a file from `offset` on. Returns their number, which is less than `len` only at the end
/// of the file.
///
/// # Safety
/// `image` comes from `floe_open`; `buffer` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_pread(
    image: *const floe_image,
    inode: u64,
    buffer: *mut c_void,
    len: usize,
    offset: u64,
) -> isize {
    call(|| {
        // SAFETY: the caller guarantees it (see "Safety").
        let (image, output) = unsafe { (of(image)?, room(buffer, len)?) };
        Ok(signed(image.read_at(Nid(inode), offset, output)?))
    })
}

/// Runs many reads on all CPUs, and sets the result of each. Returns the number of failed reads.
///
/// # Safety
/// `image` comes from `floe_open`; `reads` points to `count` reads, whose buffers have room and do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_pread_batch(image: *const floe_image, reads: *mut floe_read, count: usize) -> isize {
    call(|| {
        if count == 0 {
            return Ok(0);
        }
        if reads.is_null() {
            return Err(Failure::of(libc::EFAULT));
        }
        // SAFETY: the caller guarantees it (see "Safety").
        let (image, reads) = unsafe { (of(image)?, slice::from_raw_parts_mut(reads, count)) };
        let mut requests = Vec::with_capacity(count);
        for read in reads.iter() {
            // SAFETY: the caller guarantees it (see "Safety"); no two buffers overlap.
            let output = unsafe { room(read.buffer, read.len)? };
            requests.push(ReadRequest { nid: Nid(read.inode), offset: read.offset, output });
        }
        let results = image.read_many(&mut requests);
        let mut failure_count = 0;
        for (read, result) in reads.iter_mut().zip(results) {
            read.result = result.map_or_else(
                |error| {
                    failure_count += 1;
                    isize::negative(Failure::from(error).report())
                },
                signed,
            );
        }
        Ok(failure_count)
    })
}

/// Copies the target of a symbolic link, without a terminating zero byte, and returns its length. With `size` 0 it only
/// returns the length; if `size` is too small, the error is ERANGE.
///
/// # Safety
/// `image` comes from `floe_open`; `buffer` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_readlink(
    image: *const floe_image,
    inode: u64,
    buffer: *mut c_char,
    size: usize,
) -> isize {
    call(|| {
        // SAFETY: the caller guarantees it (see "Safety").
        let (image, output) = unsafe { (of(image)?, room(buffer.cast(), size)?) };
        copy_out(&image.file_system().read_link(Nid(inode))?, output)
    })
}

/// Copies the value of an extended attribute, like getxattr(2), and returns its length. With `size` 0 it only returns
/// the length. The error for a missing attribute is ENODATA.
///
/// # Safety
/// `image` comes from `floe_open`; `name` is a string; `buffer` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_getxattr(
    image: *const floe_image,
    inode: u64,
    name: *const c_char,
    buffer: *mut c_void,
    size: usize,
) -> isize {
    call(|| {
        // SAFETY: the caller guarantees it (see "Safety").
        let (image, name, output) = unsafe { (of(image)?, text(name)?, room(buffer, size)?) };
        let value = image.file_system().xattr(Nid(inode), name.to_bytes())?;
        copy_out(&value.ok_or(Failure::of(libc::ENODATA))?, output)
    })
}

/// Copies the names of all extended attributes, each followed by a zero byte, like listxattr(2), and returns their
/// total length. With `size` 0 it only returns the length.
///
/// # Safety
/// `image` comes from `floe_open`; `buffer` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_listxattr(
    image: *const floe_image,
    inode: u64,
    buffer: *mut c_char,
    size: usize,
) -> isize {
    call(|| {
        // SAFETY: the caller guarantees it (see "Safety").
        let (image, output) = unsafe { (of(image)?, room(buffer.cast(), size)?) };
        let mut names = Vec::new();
        for name in image.file_system().xattr_names(Nid(inode))? {
            names.extend(name);
            names.push(0);
        }
        copy_out(&names, output)
    })
}

/// The image that `open` returns, for C; NULL after an error.
fn opened(open: impl FnOnce() -> Result<Image, Failure>) -> *mut floe_image {
    let mut image = ptr::null_mut();
    call(|| {
        image = Box::into_raw(Box::new(floe_image(open()?)));
        Ok(0)
    });
    image
}

/// The library's options for those of C.
///
/// # Safety
/// `options` is NULL or points to options.
unsafe fn options_of(options: *const floe_open_options) -> OpenOptions {
    let mut open = OpenOptions::default();
    // SAFETY: the caller guarantees it (see "Safety").
    if let Some(options) = unsafe { options.as_ref() } {
        open.offset = match (options.find_offset, options.offset) {
            (0, 0) => Offset::None,
            (0, offset) => Offset::At(offset),
            _ => Offset::Auto,
        };
        if options.cache_bytes > 0 {
            (open.engine.cache_bytes, open.engine.cache_growth_bytes) = (options.cache_bytes, 0);
        }
    }
    open
}

/// Runs the body of a function. Converts an error or a panic to a negative error number.
fn call<N: CResult>(body: impl FnOnce() -> Result<N, Failure>) -> N {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| Err(Failure::of(libc::EIO)));
    result.unwrap_or_else(|failure| N::negative(failure.report()))
}

/// The return type of an exported function.
trait CResult {
    /// A negative error number.
    fn negative(number: i32) -> Self;
}

impl CResult for i32 {
    fn negative(number: i32) -> Self {
        number
    }
}

impl CResult for isize {
    fn negative(number: i32) -> Self {
        Self::try_from(number).unwrap_or(Self::MIN)
    }
}

/// Copies `bytes` like getxattr(2).
fn copy_out(bytes: &[u8], output: &mut [u8]) -> Result<isize, Failure> {
    if !output.is_empty() {
        output.get_mut(..bytes.len()).ok_or(Failure::of(libc::ERANGE))?.copy_from_slice(bytes);
    }
    Ok(signed(bytes.len()))
}

/// A length as the signed type of C. No slice is longer than `isize::MAX`.
fn signed(len: usize) -> isize {
    isize::try_from(len).unwrap_or(isize::MAX)
}

/// The image that a pointer refers to.
///
/// # Safety
/// The pointer is NULL or comes from `floe_open`, and the image stays open.
unsafe fn of<'a>(image: *const floe_image) -> Result<&'a Image, Failure> {
    // SAFETY: the caller guarantees it (see "Safety").
    unsafe { image.as_ref() }.map(|image| &image.0).ok_or(Failure::of(libc::EFAULT))
}

/// The string that a pointer refers to.
///
/// # Safety
/// The pointer is NULL or points to a string that stays valid.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a CStr, Failure> {
    if text.is_null() {
        return Err(Failure::of(libc::EFAULT));
    }
    // SAFETY: the caller guarantees it (see "Safety").
    Ok(unsafe { CStr::from_ptr(text) })
}

/// The memory for a result as a slice.
///
/// # Safety
/// `len` is 0, or `buffer` is NULL or has room for `len` bytes that no other thread uses meanwhile.
unsafe fn room<'a>(buffer: *mut c_void, len: usize) -> Result<&'a mut [u8], Failure> {
    if len == 0 {
        return Ok(&mut []);
    }
    if buffer.is_null() {
        return Err(Failure::of(libc::EFAULT));
    }
    if isize::try_from(len).is_err() {
        return Err(Failure::of(libc::EINVAL));
    }
    // SAFETY: the caller guarantees it (see "Safety"). Uninitialised memory of C is only written, never read.
    Ok(unsafe { slice::from_raw_parts_mut(buffer.cast(), len) })
}
