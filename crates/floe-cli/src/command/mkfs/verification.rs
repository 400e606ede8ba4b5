//! How much of a new image is read back.

use std::num::NonZeroUsize;

use clap::ValueEnum;
use floe::{ImageVerifier, Thoroughness};

/// The part of an image that is compared with its sources.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Default)]
pub(super) enum VerifyArgument {
    /// Nothing
    None,
    /// All metadata, and up to 64 MiB of the data
    #[default]
    Sample,
    /// All metadata and all data
    Full,
}

impl VerifyArgument {
    /// What compares it, on so many threads.
    pub(super) fn verifier(self, jobs: NonZeroUsize) -> Option<ImageVerifier> {
        let thoroughness = match self {
            Self::None => return None,
            Self::Sample => Thoroughness::Sample,
            Self::Full => Thoroughness::Full,
        };
        Some(ImageVerifier { thoroughness, jobs })
    }
}
