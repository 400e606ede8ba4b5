//! `libfloe`: EROFS and SquashFS images from C, and from everything that calls C.
//!
//! `include/floe.h` is made from this crate by cbindgen. Functions return 0 or a count, or a negative error number of
//! `errno.h`; [`exports_sys::floe_error_text`] then says in one line what went wrong. An image may be used from many
//! threads at once.
#![allow(non_camel_case_types, reason = "the names are those of C")]

mod error;
mod exports_sys;
mod types;

pub use exports_sys::*;
pub use types::*;
