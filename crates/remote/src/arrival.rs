//! The bytes of a range while they arrive.

use bytes::Bytes;
use tokio::sync::mpsc::UnboundedSender;

/// The bytes of a range that have arrived, from its start on.
#[derive(Debug, Default)]
pub(crate) struct Arrival {
    bytes: Vec<u8>,
    passing: Option<Passing>,
}

/// Passes on the bytes in parts before all have arrived.
#[derive(Debug)]
struct Passing {
    part_bytes: usize,
    /// The number of bytes that were passed on.
    passed: usize,
    parts: UnboundedSender<Bytes>,
}

impl Arrival {
    /// Bytes that are sent to `parts`, `part_bytes` at a time, as they arrive. The rest at the end is not sent.
    pub(crate) fn passed_on(part_bytes: usize, parts: UnboundedSender<Bytes>) -> Self {
        Self { bytes: Vec::new(), passing: Some(Passing { part_bytes: part_bytes.max(1), passed: 0, parts }) }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn reserve(&mut self, len: usize) {
        self.bytes.reserve(len);
    }

    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let Some(Passing { part_bytes, passed, parts }) = &mut self.passing else { return };
        while let Some(part) = self.bytes.get(*passed..*passed + *part_bytes) {
            // An abandoned read has no receiver.
            let _ = parts.send(Bytes::copy_from_slice(part));
            *passed += *part_bytes;
        }
    }

    /// Discards the bytes, so that the range is requested from its start again. Bytes that were passed on stay valid: they are
    /// verified by their receiver, and not passed on again.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_passed_on_once() {
        let (sender, mut parts) = tokio::sync::mpsc::unbounded_channel();
        let mut arrival = Arrival::passed_on(3, sender);
        let mut passed = || std::iter::from_fn(|| parts.try_recv().ok()).collect::<Vec<_>>();
        arrival.extend(b"ab");
        assert!(passed().is_empty());
        arrival.extend(b"cdefg");
        assert_eq!(passed(), ["abc", "def"]);
        arrival.clear();
        arrival.extend(b"abcdefgh");
        assert!(passed().is_empty());
        arrival.extend(b"ij");
        assert_eq!(passed(), ["ghi"]);
        assert_eq!(arrival.into_bytes(), "abcdefghij");
    }
}
