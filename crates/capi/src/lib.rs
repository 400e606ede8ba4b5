//! `libfloe`: reads EROFS and SquashFS images from C, and from all languages that call C.
//!
//! cbindgen generates `include/floe.h` from this crate. Functions return 0 or a count, or a negative error number of
//! `errno.h`; then [`exports_sys::floe_error_text`] returns a description of the error in one line. An image may be
//! used from many threads at once.
#![allow(non_camel_case_types, reason = "the names are those of C")]

mod error;
mod exports_sys;
mod types;

pub use exports_sys::*;
pub use types::*;
