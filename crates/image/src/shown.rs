//! Names and paths as text. They may contain any bytes, and may be hostile.

use std::{borrow::Cow, ffi::OsStr, fmt, path::Path};

/// A name or path for display: unchanged if it is plain text, otherwise quoted for shells, `$'two\nlines'`, so that no name
/// can send control sequences to the terminal or imitate another name. Every name in every message is displayed in this way.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a [u8]);

/// A path or another name of the operating system, which [`Shown`] displays.
pub trait ShownName {
    /// The name for display.
    fn shown(&self) -> Shown<'_>;
}

impl ShownName for OsStr {
    fn shown(&self) -> Shown<'_> {
        Shown(self.as_encoded_bytes())
    }
}

impl ShownName for Path {
    fn shown(&self) -> Shown<'_> {
        self.as_os_str().shown()
    }
}

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

/// Characters that act on the terminal instead of being visible: control characters, those that change the text direction
/// or end a line, and invisible ones. The joiners of words (U+200C, U+200D) are part of ordinary text.
fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// A text of several names or from another program, with `\xXX` in the place of harmful characters other than line feeds and
/// tabs. Names are displayed with [`Shown`]; this is for messages that contain what no type tells apart.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let is_kept = |character: char| matches!(character, '\n' | '\t') || !is_harmful(character);
    if text.chars().all(is_kept) {
        return text.into();
    }
    let mut harmless = String::with_capacity(text.len());
    for character in text.chars() {
        if is_kept(character) {
            harmless.push(character);
        } else {
            let mut bytes = [0; 4];
            character.encode_utf8(&mut bytes).bytes().for_each(|byte| harmless.push_str(&format!("\\x{byte:02x}")));
        }
    }
    harmless.into()
}

/// A name in JSON output: text stays unchanged, but `%`, control characters and bytes that are not UTF-8 become `%XX`.
/// Decoding `%XX` restores the exact bytes.
pub fn json_name(name: &[u8]) -> String {
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
    fn texts_keep_their_lines_and_lose_control_sequences() {
        for (text, expected) in [
            ("two\n\tlines, größe", "two\n\tlines, größe"),
            ("\u{1b}[2J\u{9b}m\r\u{202e}", "\\x1b[2J\\xc2\\x9bm\\x0d\\xe2\\x80\\xae"),
        ] {
            assert_eq!(harmless(text), expected);
        }
    }

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
            ("\u{9b}31m\u{feff}".as_bytes(), "$'\\xc2\\x9b31m\\xef\\xbb\\xbf'", "%C2%9B31m%EF%BB%BF"),
            ("a\u{202e}b".as_bytes(), "$'a\\xe2\\x80\\xaeb'", "a%E2%80%AEb"),
            (b"", "$''", ""),
        ] {
            assert_eq!(Shown(name).to_string(), shown);
            assert_eq!(json_name(name), json);
        }
    }
}
