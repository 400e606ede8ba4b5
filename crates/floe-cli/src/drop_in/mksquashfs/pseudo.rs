//! Pseudo definitions: entries of the image that no source has.

use std::{
    ffi::OsStr,
    fs::File,
    os::unix::ffi::OsStrExt,
    process::{Command, Stdio},
    sync::Arc,
};

use floe_image::{DeviceNumber, FileType, Shown};
use floe_mkfs::{PseudoAction, PseudoAttributes, PseudoBody, PseudoFile};

use super::accounts::{Accounts, octal_mode};
use crate::drop_in::unsquashfs::time;

/// The definitions in a pseudo file: lines, without comments. A backslash at the end of a line continues it.
pub(super) fn definitions(text: &[u8]) -> Vec<Vec<u8>> {
    let mut definitions = Vec::new();
    let mut open: Vec<u8> = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        open.extend_from_slice(line);
        if open.ends_with(b"\\") {
            open.pop();
            continue;
        }
        let definition = std::mem::take(&mut open);
        let trimmed = definition.trim_ascii_start();
        if !trimmed.is_empty() && !trimmed.starts_with(b"#") {
            definitions.push(trimmed.to_vec());
        }
    }
    definitions
}

/// Parses a definition. Runs its command if it has one: its output becomes the content of a file. Entries without a time
/// get `now`.
///
/// # Errors
/// A message.
pub(super) fn parse(text: &[u8], accounts: &Accounts, now: i64) -> Result<PseudoFile, String> {
    let wrong = |reason: &str| format!("the pseudo definition '{}' is wrong: {reason}", Shown(text));
    let mut words = Words { rest: text };
    let path = words.name().ok_or_else(|| wrong("a file name is missing"))?;
    let kind = words.word().filter(|word| word.len() == 1).ok_or_else(|| wrong("a type of one letter is missing"))?;
    let kind = kind[0];
    let action = match kind {
        b'x' => {
            let (name, value) = split(words.remainder(), b'=').ok_or_else(|| wrong("it needs name=value"))?;
            PseudoAction::SetXattr { name: name.to_vec(), value: value_of(value).ok_or_else(|| wrong("its value"))? }
        }
        b'h' | b'l' => PseudoAction::Link(words.name().ok_or_else(|| wrong("a target is missing"))?),
        b'd' | b'm' | b'b' | b'c' | b'f' | b's' | b'i' | b'D' | b'M' | b'B' | b'C' | b'F' | b'S' | b'I' => {
            let mut modified = None;
            if kind.is_ascii_uppercase() {
                let word = words.name().ok_or_else(|| wrong("a time is missing"))?;
                modified = Some(time::parse(OsStr::from_bytes(&word)).map_err(|reason| wrong(&reason))?.seconds);
            }
            let attributes = words.attributes(accounts, modified).map_err(|reason| wrong(&reason))?;
            match kind.to_ascii_lowercase() {
                b'm' => PseudoAction::Modify(attributes),
                kind => {
                    let attributes = PseudoAttributes { modified: Some(modified.unwrap_or(now)), ..attributes };
                    PseudoAction::Add(words.body(kind).map_err(|reason| wrong(&reason))?, attributes)
                }
            }
        }
        kind => return Err(wrong(&format!("floe has no type {}", kind.escape_ascii()))),
    };
    Ok(PseudoFile { path, action })
}

/// The words of a definition.
struct Words<'a> {
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<&'a [u8]> {
        let text = self.rest.trim_ascii_start();
        let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        self.rest = rest;
        Some(word).filter(|word| !word.is_empty())
    }

    fn text(&mut self) -> Option<&'a str> {
        self.word().and_then(|word| str::from_utf8(word).ok())
    }

    /// A word that may be in quotes, or have backslashes before blanks.
    fn name(&mut self) -> Option<Vec<u8>> {
        let text = self.rest.trim_ascii_start();
        let (is_quoted, text) = text.strip_prefix(b"\"").map_or((false, text), |text| (true, text));
        let (mut name, mut at) = (Vec::new(), 0);
        while let Some(byte) = text.get(at) {
            let ends = if is_quoted { *byte == b'"' } else { byte.is_ascii_whitespace() };
            if ends {
                break;
            }
            at += usize::from(*byte == b'\\' && at + 1 < text.len());
            name.push(text[at]);
            at += 1;
        }
        self.rest = text.get(at + usize::from(is_quoted)..).unwrap_or_default();
        Some(name).filter(|name| !name.is_empty())
    }

    fn remainder(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest).trim_ascii()
    }

    /// Mode, owner and group.
    fn attributes(&mut self, accounts: &Accounts, modified: Option<i64>) -> Result<PseudoAttributes, String> {
        let permissions = self.text().and_then(octal_mode).ok_or("it needs a mode in octal")?;
        let uid = self.text().and_then(|text| accounts.user(text)).ok_or("it needs a user")?;
        let gid = self.text().and_then(|text| accounts.group(text)).ok_or("it needs a group")?;
        Ok(PseudoAttributes { permissions, uid, gid, modified })
    }

    fn body(&mut self, kind: u8) -> Result<PseudoBody, String> {
        Ok(match kind {
            b'd' => PseudoBody::Directory,
            b's' => PseudoBody::Symlink(self.name().ok_or("a target is missing")?),
            b'f' => PseudoBody::File(Arc::new(output_of(self.remainder())?)),
            b'i' => match self.word() {
                Some(b"s") => PseudoBody::Special(FileType::Socket, DeviceNumber::default()),
                Some(b"f") | None => PseudoBody::Special(FileType::Fifo, DeviceNumber::default()),
                Some(_) => return Err("i has s for a socket, or f for a named pipe".into()),
            },
            _ => {
                let mut number = |max: u32| self.text()?.parse::<u32>().ok().filter(|number| *number <= max);
                let numbers = number(0xfff).zip(number(0xf_ffff));
                let (major, minor) = numbers.ok_or("it needs a major and a minor number")?;
                let kind = if kind == b'b' { FileType::BlockDevice } else { FileType::CharacterDevice };
                PseudoBody::Special(kind, DeviceNumber { major, minor })
            }
        })
    }
}

/// Runs a command, and returns a file without a name that has its output.
fn output_of(command: &[u8]) -> Result<File, String> {
    let failed = |error: std::io::Error| format!("its command cannot be run: {error}");
    let file = tempfile::tempfile().map_err(failed)?;
    let output = file.try_clone().map_err(failed)?;
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(OsStr::from_bytes(command)).stdin(Stdio::null()).stdout(output);
    let status = shell.status().map_err(failed)?;
    if status.success() { Ok(file) } else { Err(format!("its command failed: {status}")) }
}

/// The value of an attribute: bytes, or hexadecimal digits after `0x`.
fn value_of(text: &[u8]) -> Option<Vec<u8>> {
    let Some(digits) = text.strip_prefix(b"0x").or(text.strip_prefix(b"0X")) else {
        // Other notations of the original: base64, and octal escapes.
        let is_other = text.starts_with(b"0s") || text.starts_with(b"0S") || text.starts_with(b"0t");
        return (!is_other).then(|| text.to_vec());
    };
    let (pairs, rest) = digits.as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect::<Option<_>>().filter(|_| rest.is_empty())
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = text.iter().position(|byte| *byte == at)?;
    Some((&text[..place], &text[place + 1..]))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    #[test]
    fn definitions_are_lines() {
        let text = b"# comment\n/dev d 755 0 0\n\n  /long s 777 0 0 \\\ntarget\nlast d 700 0 0";
        let expected: [&[u8]; 3] = [b"/dev d 755 0 0", b"/long s 777 0 0 target", b"last d 700 0 0"];
        assert_eq!(definitions(text), expected);
    }

    #[test]
    fn definitions_are_parsed() {
        let accounts = Accounts::default();
        for (text, expected) in [
            ("/dev d 755 0 0", Some("Add(Directory, permissions: 493, uid: 0, gid: 0, modified: Some(7))")),
            ("\"a b\" M 5 644 1 2", Some("Modify(permissions: 420, uid: 1, gid: 2, modified: Some(5))")),
            ("n c 666 root 0 1 3", Some("Add(Special(CharacterDevice, DeviceNumber { major: 1, minor: 3 })")),
            ("n b 666 0 0 259 70000", Some("Add(Special(BlockDevice, DeviceNumber { major: 259, minor: 70000 })")),
            ("l s 777 0 0 to/there", Some("Add(Symlink([116, 111, 47")),
            ("p i 600 0 0 f", Some("Add(Special(Fifo")),
            ("p i 600 0 0 s", Some("Add(Special(Socket")),
            ("f x user.a=0x4142", Some("SetXattr { name: [117, 115, 101, 114, 46, 97], value: [65, 66] }")),
            ("h l other\\ name", Some("Link([111, 116, 104, 101, 114, 32")),
            ("/dev d 755 0", None),
            ("/dev d 1x 0 0", None),
            ("/dev c 755 0 0 1", None),
            ("/dev c 755 0 0 4096 0", None),
            ("/dev q 755 0 0", None),
            ("f x user.a=0sQUI=", None),
            ("f f 644 0 0 exit 3", None),
            ("", None),
        ] {
            let parsed = parse(text.as_bytes(), &accounts, 7).map(|parsed| {
                let told = format!("{:?}", parsed.action);
                told.replace("PseudoAttributes { ", "").replace(" }", "")
            });
            match (parsed, expected) {
                (Ok(told), Some(expected)) => {
                    let expected = expected.replace(" }", "");
                    assert!(told.starts_with(&expected), "{told} instead of {expected}");
                }
                (Err(told), None) => assert!(told.contains("pseudo definition"), "{told}"),
                (told, _) => panic!("{told:?} for {text}"),
            }
        }
    }

    #[test]
    fn commands_make_files() {
        let parsed = parse(b"f f 644 0 0 echo one; echo two", &Accounts::default(), 7).expect("it is right");
        let PseudoAction::Add(PseudoBody::File(file), _) = parsed.action else { panic!("{parsed:?}") };
        let mut text = String::new();
        (&*file).rewind().and_then(|()| (&*file).read_to_string(&mut text)).expect("it can be read");
        assert_eq!(text, "one\ntwo\n");
    }
}
