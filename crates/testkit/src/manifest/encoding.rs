//! Escaping of bytes in manifests.

use sha2::{Digest, Sha256};

/// Escapes each byte outside `A-Za-z0-9._-/+=,@:~` as `%XX`.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => text.push(char::from(*byte)),
            byte if b"._-/+=,@:~".contains(byte) => text.push(char::from(*byte)),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// The inverse of [`escape`]; `None` if a `%` is not followed by two hex digits.
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    Some(bytes)
}

/// The bytes in lower-case hex.
pub fn hex_from_bytes(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The inverse of [`hex_from_bytes`]; `None` if the string is invalid.
pub fn bytes_from_hex(hex: &str) -> Option<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?, 16).ok())
        .collect()
}

/// The SHA-256 of `bytes`, in hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex_from_bytes(&Sha256::digest(bytes))
}
