//! Extended attributes.

/// An extended attribute, borrowed by a visitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Xattr<'a> {
    /// The full name: `user.comment`.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}
