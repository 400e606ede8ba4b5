//! How far this program has the options of the original.

/// How this program treats an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Support {
    /// Same effect as in the original.
    Supported,
    /// Accepted without effect, for this reason.
    Ignored(&'static str),
    /// Refused, for this reason.
    Refused(&'static str),
}
