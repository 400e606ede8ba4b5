//! How this program treats what the original has.

/// How this program treats an option or a feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Support {
    /// Same effect as in the original.
    Supported,
    /// Accepted without effect, for this reason.
    Ignored(&'static str),
    /// Refused, for this reason, except with one of these values, which describe the behaviour of this program; ""
    /// means no value.
    Refused(&'static str, &'static [&'static str]),
}
