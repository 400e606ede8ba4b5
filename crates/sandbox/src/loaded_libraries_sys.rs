//! The libraries that are loaded into this process.

use std::{
    ffi::{CStr, OsString, c_int, c_void},
    os::unix::ffi::OsStringExt,
    path::PathBuf,
};

/// The paths of the libraries that are loaded into this process; none if it is linked statically.
pub fn loaded_libraries() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = Vec::new();
    // SAFETY: `note` has the right type, and its last argument is the vector, which nobody else uses meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut paths).cast()) };
    paths
}

/// Adds the path of an object to the vector of paths at `paths`. The program itself has an empty path.
extern "C" fn note(object: *mut libc::dl_phdr_info, _: usize, paths: *mut c_void) -> c_int {
    // SAFETY: the C library passes an object, and the address that `loaded_libraries` gave it.
    let (object, paths) = unsafe { (&*object, &mut *paths.cast::<Vec<PathBuf>>()) };
    if !object.dlpi_name.is_null() {
        // SAFETY: the name of an object is a string that lives as long as the object is loaded.
        let name = unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes();
        if !name.is_empty() {
            paths.push(OsString::from_vec(name.to_vec()).into());
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_loaded_unless_linked_in() {
        let is_loaded = |name: &str| {
            loaded_libraries().iter().filter_map(|path| path.file_name()?.to_str()).any(|file| file.starts_with(name))
        };
        assert_eq!(is_loaded("libc.so"), cfg!(not(target_feature = "crt-static")));
        assert!(!is_loaded("libnothing"));
    }
}
