//! The secret by which a broker recognises what an earlier one has written.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The length of a key and of a code in bytes.
pub(super) const LEN: usize = 32;

/// The key for the authentication codes of [records](super::record::Record). Only brokers of one service have it: processes of users
/// pass records on, and could make up others.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct RecordKey([u8; LEN]);

impl RecordKey {
    /// A new key.
    ///
    /// # Errors
    /// `/dev/urandom` cannot be read.
    pub(super) fn random() -> io::Result<Self> {
        let mut bytes = [0; LEN];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The key with these bytes.
    pub(super) fn of(bytes: [u8; LEN]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> &[u8; LEN] {
        &self.0
    }

    /// The code of a message: HMAC-SHA-256 (RFC 2104).
    pub(super) fn code(&self, message: &[u8]) -> [u8; LEN] {
        self.mac(message).finalize().into_bytes().into()
    }

    /// Whether this is the code of a message. The time does not depend on where a wrong code differs.
    pub(super) fn has_code(&self, message: &[u8], code: &[u8; LEN]) -> bool {
        self.mac(message).verify(code.into()).is_ok()
    }

    fn mac(&self, message: &[u8]) -> Hmac<Sha256> {
        <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0).expect("any length is permitted").chain_update(message)
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RecordKey").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_standard() {
        // RFC 4231, cases 1 and 2: keys shorter than a block are followed by zeros.
        for (key, message, expected) in [
            (&[0x0b; 20][..], &b"Hi There"[..], "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
            (
                b"Jefe",
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
        ] {
            let mut bytes = [0; LEN];
            bytes[..key.len()].copy_from_slice(key);
            let key = RecordKey::of(bytes);
            let mut code = key.code(message);
            assert_eq!(code.map(|byte| format!("{byte:02x}")).concat(), expected);
            assert!(key.has_code(message, &code));
            code[LEN - 1] ^= 1;
            assert!(!key.has_code(message, &code));
        }
    }
}
