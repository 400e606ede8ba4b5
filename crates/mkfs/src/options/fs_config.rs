//! Owners, modes and capabilities by path, as in Android's file system configuration.

use std::collections::HashMap;

use crate::error::{Error, Result, shown};

/// The revision of the value of `security.capability`, with the flag that the capabilities are effective.
const CAPABILITY_REVISION: u32 = 0x0200_0001;

/// The attributes of files by their paths.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FsConfig {
    /// Paths have no slashes at their ends.
    entries: HashMap<Vec<u8>, FsConfigEntry>,
}

/// The attributes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FsConfigEntry {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) permissions: u16,
    /// The capabilities of a program, a bit for each.
    capabilities: u64,
}

impl FsConfig {
    /// Parses lines of a path, an owner, a group, an octal mode, and optionally `capabilities=NUMBER`. Paths begin with the
    /// mountpoint, and a slash before them counts for nothing.
    ///
    /// # Errors
    /// [`Error::Option`]: a line has another form.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let mut entries = HashMap::new();
        for (line, number) in text.split(|byte| *byte == b'\n').zip(1..) {
            let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
            let Some(path) = fields.next().filter(|path| !path.starts_with(b"#")) else { continue };
            let fields: Option<Vec<&str>> = fields.map(|field| std::str::from_utf8(field).ok()).collect();
            let entry = fields.and_then(|fields| FsConfigEntry::parse(&fields));
            let entry = entry.ok_or_else(|| {
                let form = "a line is a path, an owner, a group, an octal mode, and perhaps capabilities=NUMBER";
                Error::Option(format!("file system configuration, line {number}: {form}"))
            })?;
            entries.insert(trimmed(path).to_vec(), entry);
        }
        Ok(Self { entries })
    }

    /// The attributes of the file at a path, which begins with the mountpoint. The root may have the path of the mountpoint or
    /// an empty one.
    ///
    /// # Errors
    /// [`Error::Option`]: there is no line for it.
    pub(crate) fn entry(&self, path: &[u8], is_root: bool) -> Result<FsConfigEntry> {
        let known = self.entries.get(trimmed(path));
        let known = known.or_else(|| self.entries.get(&b""[..]).filter(|_| is_root)).copied();
        known.ok_or_else(|| {
            Error::Option(format!("the file system configuration has no line for {}", shown(trimmed(path))))
        })
    }
}

impl FsConfigEntry {
    fn parse(fields: &[&str]) -> Option<Self> {
        let (fields, capabilities) = match fields {
            [fields @ .., last] if last.starts_with("capabilities=") => {
                (fields, number(last.strip_prefix("capabilities=")?)?)
            }
            fields => (fields, 0),
        };
        let [uid, gid, mode] = fields else { return None };
        let permissions = u16::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777)?;
        Some(Self { uid: uid.parse().ok()?, gid: gid.parse().ok()?, permissions, capabilities })
    }

    /// The value of `security.capability`, if the file has capabilities.
    pub(crate) fn capability_value(&self) -> Option<Vec<u8>> {
        let halves = [self.capabilities as u32, (self.capabilities >> 32) as u32];
        let words = [CAPABILITY_REVISION, halves[0], 0, halves[1], 0];
        (self.capabilities != 0).then(|| words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }
}

/// A number in C's notation.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A path without slashes at its ends.
pub(super) fn trimmed(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(start, |last| last + 1);
    &path[start..end.max(start)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_attributes_by_path() {
        let text =
            b"/ 0 2000 0755\nsystem/bin/ping 0 2000 0755 capabilities=0x2400\n\n# no\n/system/etc/ 1000 1000 644\n";
        let config = FsConfig::parse(text).expect("it is right");
        let ping = config.entry(b"/system/bin/ping", false).expect("it is there");
        assert_eq!((ping.uid, ping.gid, ping.permissions), (0, 2000, 0o755));
        let value = [1, 0, 0, 2, 0, 0x24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(ping.capability_value().as_deref(), Some(&value[..]));
        assert_eq!(config.entry(b"system/etc", false).expect("it is there").capability_value(), None);
        assert_eq!(config.entry(b"/system", true).expect("it is the root").gid, 2000);
        let error = config.entry(b"/system/lib", false).expect_err("it is not there").to_string();
        assert!(error.contains("no line for system/lib"), "{error}");
        for line in ["a", "a 0 0", "a 0 0 9", "a 0 0 10000", "a x 0 644", "a 0 0 644 more", "a 0 0 644 capabilities=x"]
        {
            assert!(FsConfig::parse(line.as_bytes()).is_err(), "{line}");
        }
    }
}
