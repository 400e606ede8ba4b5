//! Decodes gzip files.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// The first byte of a member.
const MAGIC: u8 = 0x1f;

/// Decodes the members of a gzip file. Zeros after a member are skipped: tapes and some programs pad files with them.
pub(super) struct GzipMembers<Input> {
    /// The current member; `None` at the end.
    member: Option<GzDecoder<Input>>,
}

impl<Input: BufRead> GzipMembers<Input> {
    pub(super) fn new(input: Input) -> Self {
        Self { member: Some(GzDecoder::new(input)) }
    }
}

impl<Input: BufRead> Read for GzipMembers<Input> {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(member) = &mut self.member else { return Ok(0) };
            let len = member.read(output)?;
            if len > 0 || output.is_empty() {
                return Ok(len);
            }
            // The decoder does not touch its input after the end of the member.
            let input = member.get_mut();
            if skip_zeros(input)? {
                self.member = None;
            } else if input.fill_buf()?.first() != Some(&MAGIC) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "other data follows the compressed data"));
            } else {
                self.member = self.member.take().map(|member| GzDecoder::new(member.into_inner()));
            }
        }
    }
}

/// Skips zeros; returns whether the input ends after them.
fn skip_zeros(input: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = input.fill_buf()?;
        if bytes.is_empty() {
            return Ok(true);
        }
        let (zeros, len) = (bytes.iter().take_while(|byte| **byte == 0).count(), bytes.len());
        input.consume(zeros);
        if zeros < len {
            return Ok(false);
        }
    }
}
