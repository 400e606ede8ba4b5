//! The compressors of one thread, one for each coding.

use crate::{error::Result, hints::Coding, options::Options, segment::SegmentCompressor};

/// The compressors of one thread, created on first use.
pub(crate) struct Compressors<'a> {
    options: &'a Options,
    codings: Vec<Coding>,
    made: Vec<Option<SegmentCompressor>>,
}

impl<'a> Compressors<'a> {
    /// Creates an empty set.
    pub(crate) fn new(options: &'a Options) -> Self {
        Self { options, codings: options.codings(), made: Vec::new() }
    }

    /// The compressor for the coding with this number; `None` without a coding.
    pub(crate) fn of(&mut self, coding: Option<usize>) -> Result<Option<&mut SegmentCompressor>> {
        let Some((number, coding)) = coding.and_then(|number| Some((number, self.codings.get(number)?))) else {
            return Ok(None);
        };
        self.made.resize_with(self.codings.len(), || None);
        let made = &mut self.made[number];
        if made.is_none() {
            *made = Some(SegmentCompressor::new(self.options, *coding)?);
        }
        Ok(made.as_mut())
    }
}
