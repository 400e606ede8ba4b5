//! The mapping of errors to errno.

use floe_fuse_wire::Errno;
use floe_image::Error;

/// Returns the errno for the client of a failed request, the same as from the kernel's own mounts.
pub(crate) fn errno_of(error: &Error) -> Errno {
    Errno::from_raw_os_error(match error {
        // `EFSCORRUPTED` of the kernel.
        Error::Corrupt { .. } => libc::EUCLEAN,
        Error::Unsupported { .. } => libc::EOPNOTSUPP,
        Error::WrongType { expected: "a directory", .. } => libc::ENOTDIR,
        Error::WrongType { .. } => libc::EINVAL,
        Error::NoMemory => libc::ENOMEM,
        _ => libc::EIO,
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use floe_image::{DeviceId, Nid, Place};

    use super::*;

    #[test]
    fn errors_have_the_kernels_numbers() {
        for (error, expected) in [
            (Error::corrupt("rule", Place::UNKNOWN), libc::EUCLEAN),
            (Error::unsupported("feature"), libc::EOPNOTSUPP),
            (Error::WrongType { expected: "a directory", nid: Nid(1) }, libc::ENOTDIR),
            (Error::WrongType { expected: "a symbolic link", nid: Nid(1) }, libc::EINVAL),
            (Error::NoMemory, libc::ENOMEM),
            (Error::Cancelled, libc::EIO),
            (Error::io(DeviceId(0), 0, io::ErrorKind::NotFound.into()), libc::EIO),
        ] {
            assert_eq!(errno_of(&error).raw_os_error(), expected, "{error}");
        }
    }
}
