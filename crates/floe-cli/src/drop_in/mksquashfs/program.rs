//! The names of the program.

/// The name of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::drop_in) enum Program {
    /// Sources, the image, options.
    Mksquashfs,
    /// Options, the image, names to exclude. The source is an archive from standard input.
    Sqfstar,
}

impl Program {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Mksquashfs => "mksquashfs",
            Self::Sqfstar => "sqfstar",
        }
    }
}
