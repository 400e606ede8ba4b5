//! Whether an operation may wait for bytes that are not in memory.

/// Whether an operation may wait for bytes that are not in memory.
///
/// A thread that takes requests of the kernel asks with [`Blocking::Never`] first: what would wait ends in
/// [`Error::WouldBlock`](floe_image::Error::WouldBlock), and the same question is asked again, with
/// [`Blocking::Allowed`], by a thread that may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocking {
    /// The caller waits until the bytes are there.
    Allowed,
    /// What would wait fails.
    Never,
}

impl Blocking {
    /// Whether waiting is allowed.
    pub fn is_allowed(self) -> bool {
        self == Self::Allowed
    }
}
