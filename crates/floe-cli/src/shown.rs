//! Prints names from images as text. Names may contain any bytes, and may be hostile.

use std::fmt;

/// A name for display: unchanged if it is plain text, otherwise quoted for shells, `$'two\nlines'`, so that no name can
/// send control sequences to the terminal or imitate another name.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(self.0) {
            Ok(text) if !text.is_empty() && !text.starts_with("$'") && !text.chars().any(is_harmful) => {
                return formatter.write_str(text);
            }
            _ => {}
        }
        formatter.write_str("$'")?;
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '\n' => formatter.write_str("\\n")?,
                    '\t' => formatter.write_str("\\t")?,
                    '\r' => formatter.write_str("\\r")?,
                    '\'' | '\\' => write!(formatter, "\\{character}")?,
                    _ if is_harmful(character) => {
                        let mut bytes = [0; 4];
                        for byte in character.encode_utf8(&mut bytes).bytes() {
                            write!(formatter, "\\x{byte:02x}")?;
                        }
                    }
                    _ => write!(formatter, "{character}")?,
                }
            }
            for byte in chunk.invalid() {
                write!(formatter, "\\x{byte:02x}")?;
            }
        }
        formatter.write_str("'")
    }
}

/// Characters that are invisible: control characters, and those that change the text direction.
fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A name in JSON output: text stays unchanged, but `%`, control characters and bytes that are not UTF-8 become `%XX`.
/// Decoding `%XX` restores the exact bytes.
pub(crate) fn json_name(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    let push_byte = |text: &mut String, byte: u8| {
        text.push('%');
        text.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or_default().to_ascii_uppercase());
        text.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or_default().to_ascii_uppercase());
    };
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '%' || is_harmful(character) {
                let mut bytes = [0; 4];
                character.encode_utf8(&mut bytes).bytes().for_each(|byte| push_byte(&mut text, byte));
            } else {
                text.push(character);
            }
        }
        chunk.invalid().iter().for_each(|byte| push_byte(&mut text, *byte));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_quoted() {
        for (name, shown, json) in [
            (&b"plain name.txt"[..], "plain name.txt", "plain name.txt"),
            ("größe".as_bytes(), "größe", "größe"),
            (b"two\nlines", "$'two\\nlines'", "two%0Alines"),
            (b"\x1b[31mred", "$'\\x1b[31mred'", "%1B[31mred"),
            (b"\xff\xfe", "$'\\xff\\xfe'", "%FF%FE"),
            (b"100%", "100%", "100%25"),
            (b"it's\\\x07", "$'it\\'s\\\\\\x07'", "it's\\%07"),
            (b"$'x'", "$'$\\'x\\''", "$'x'"),
            ("a\u{202e}b".as_bytes(), "$'a\\xe2\\x80\\xaeb'", "a%E2%80%AEb"),
            (b"", "$''", ""),
        ] {
            assert_eq!(Shown(name).to_string(), shown);
            assert_eq!(json_name(name), json);
        }
    }
}
