//! A source that is the end of another source.

use std::{io, sync::Arc};

use floe_image::ImageSource;

/// The bytes of another source from an offset on.
pub(crate) struct PartSource {
    whole: Arc<dyn ImageSource>,
    offset: u64,
    len: u64,
}

impl PartSource {
    /// The bytes from `offset` on; `None` if the source is shorter.
    pub(crate) fn new(whole: Arc<dyn ImageSource>, offset: u64) -> Option<Self> {
        let len = whole.len().checked_sub(offset)?;
        Some(Self { whole, offset, len })
    }

    /// Translates an offset to the whole source.
    fn place(&self, offset: u64, len: usize) -> io::Result<u64> {
        match u64::try_from(len).ok().and_then(|len| offset.checked_add(len)) {
            Some(end) if end <= self.len => Ok(self.offset + offset),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Passes a hint to the whole source, limited to the bytes of this one.
    fn hint(&self, offset: u64, len: u64, tell: impl Fn(u64, u64)) {
        let len = len.min(self.len.saturating_sub(offset));
        if len > 0 {
            tell(self.offset + offset, len);
        }
    }
}

impl ImageSource for PartSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.whole.read_at(self.place(offset, output.len())?, output)
    }

    fn try_read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        self.whole.try_read_at(self.place(offset, output.len())?, output)
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.hint(offset, len, |offset, len| self.whole.will_need(offset, len));
    }

    fn dont_need(&self, offset: u64, len: u64) {
        self.hint(offset, len, |offset, len| self.whole.dont_need(offset, len));
    }
}

#[cfg(test)]
mod tests {
    use floe_testkit::MemorySource;

    use super::*;

    #[test]
    fn a_part_begins_and_ends_with_its_bytes() {
        let whole: Arc<dyn ImageSource> = Arc::new(MemorySource::new((0..100).collect::<Vec<u8>>()));
        let part = PartSource::new(Arc::clone(&whole), 90).expect("within");
        let mut bytes = [0; 10];
        part.read_at(0, &mut bytes).expect("read");
        assert_eq!((part.len(), bytes), (10, [90, 91, 92, 93, 94, 95, 96, 97, 98, 99]));
        for (offset, len) in [(1, 10), (10, 1), (u64::MAX, 1)] {
            assert!(part.read_at(offset, &mut bytes[..len]).is_err(), "{len} bytes from {offset}");
        }
        part.will_need(u64::MAX, u64::MAX);
        assert!(PartSource::new(whole, 101).is_none());
    }
}
