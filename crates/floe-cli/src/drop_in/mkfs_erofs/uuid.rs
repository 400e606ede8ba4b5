//! The UUID argument.

use std::{
    fs::File,
    io::{self, Read},
};

/// Parses the argument; `None` derives it from the content.
///
/// # Errors
/// A message: it is neither a UUID nor one of the words, or there is no randomness.
pub(super) fn uuid(text: &str) -> Result<Option<[u8; 16]>, String> {
    match text {
        "clear" => Ok(Some([0; 16])),
        "random" => random_uuid().map(Some).map_err(|error| format!("cannot generate a random UUID: {error}")),
        text => {
            let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
            let is_uuid = digits.len() == 32 && text.len() == 36 && digits.iter().all(u8::is_ascii_hexdigit);
            let number = std::str::from_utf8(&digits).ok().filter(|_| is_uuid);
            let number = number.and_then(|digits| u128::from_str_radix(digits, 16).ok());
            number.map(|number| Some(number.to_be_bytes())).ok_or_else(|| format!("invalid UUID {text}"))
        }
    }
}

fn random_uuid() -> io::Result<[u8; 16]> {
    let mut uuid = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut uuid)?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}
