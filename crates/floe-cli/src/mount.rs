//! The pipeline of a mount: a [`Request`] is prepared, confined and mounted, and has [`Ended`].
//!
//! Each type owns what its stage needs and turns into the next one. The settings never change once they are parsed; what
//! follows from them for opening and mounting is computed once, by [`Request::prepare`].

mod confined;
mod held;
mod mounted;
mod prepared;
mod request;
mod spill_directory;
mod target;

pub(crate) use mounted::{Ended, Mounted, notify};
pub(crate) use request::Request;
