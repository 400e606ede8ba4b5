//! Whether an operation may wait for bytes that are not in memory.

/// Whether an operation may wait for bytes that are not in memory.
///
/// A thread that serves kernel requests first tries with [`Blocking::Never`]. An operation that would have to wait then
/// fails with [`Error::WouldBlock`](floe_image::Error::WouldBlock), and a thread that may wait repeats it with
/// [`Blocking::Allowed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocking {
    /// The operation waits until the bytes arrive.
    Allowed,
    /// The operation fails instead of waiting.
    Never,
}

impl Blocking {
    /// Whether waiting is allowed.
    pub fn is_allowed(self) -> bool {
        self == Self::Allowed
    }
}
