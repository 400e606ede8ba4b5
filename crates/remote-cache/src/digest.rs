//! SHA-256 digests.

use std::{fmt, str::FromStr};

use sha2::{Digest as _, Sha256};

/// The size of a digest, in bytes.
pub(crate) const DIGEST_BYTES: usize = 32;

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; DIGEST_BYTES]);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of `salt` followed by `bytes`, as dm-verity computes it.
    pub fn salted(salt: &[u8], bytes: &[u8]) -> Self {
        Self(Sha256::new().chain_update(salt).chain_update(bytes).finalize().into())
    }
}

impl fmt::Display for Digest {
    /// 64 hexadecimal digits, without `sha256:`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "sha256:{self}")
    }
}

/// The text is not a SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoDigest;

impl fmt::Display for NoDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("not a SHA-256 digest of 64 hexadecimal digits")
    }
}

impl std::error::Error for NoDigest {}

impl FromStr for Digest {
    type Err = NoDigest;

    /// Parses 64 hexadecimal digits, with or without the prefix `sha256:`.
    fn from_str(text: &str) -> Result<Self, NoDigest> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text).as_bytes();
        let mut bytes = [0; DIGEST_BYTES];
        if digits.len() != 2 * DIGEST_BYTES {
            return Err(NoDigest);
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
            let [high, low] = [pair[0], pair[1]].map(nibble);
            *byte = high.ok_or(NoDigest)? << 4 | low.ok_or(NoDigest)?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_read_and_written() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(Digest::salted(b"ab", b"c"), Digest::of(b"abc"));
        for (text, expected) in [
            (empty.to_owned(), Ok(Digest::of(b""))),
            (format!("sha256:{empty}"), Ok(Digest::of(b""))),
            (empty.to_uppercase(), Ok(Digest::of(b""))),
            (format!("sha512:{empty}"), Err(NoDigest)),
            (empty[1..].to_owned(), Err(NoDigest)),
            (format!("+{}", &empty[1..]), Err(NoDigest)),
            ("é".repeat(32), Err(NoDigest)),
            (String::new(), Err(NoDigest)),
        ] {
            assert_eq!(text.parse(), expected, "{text}");
        }
    }
}
