//! Converts access control lists from the text form of archives to the attributes that the kernel reads.

use std::{collections::HashMap, fs, path::Path, sync::OnceLock};

use super::extensions::decimal;
use crate::tree::xattrs::{Acl, GROUP, GROUP_OWNER, MASK, OTHER, USER, USER_OWNER};

/// The id of an entry without one.
const NO_ID: u32 = u32::MAX;
/// The maximum number of entries in a list; with more, the attribute would exceed 65535 bytes.
const ENTRIES_MAX: usize = 8191;

/// User and group ids by name, from `/etc/passwd` and `/etc/group` of this machine.
#[derive(Default)]
pub(super) struct Accounts {
    users: OnceLock<HashMap<Vec<u8>, u32>>,
    groups: OnceLock<HashMap<Vec<u8>, u32>>,
}

impl Accounts {
    fn number(&self, tag: u16, name: &[u8]) -> Option<u32> {
        let (table, path) = match tag {
            USER => (&self.users, "/etc/passwd"),
            _ => (&self.groups, "/etc/group"),
        };
        table.get_or_init(|| read_accounts(Path::new(path))).get(name).copied()
    }
}

/// In both files the first field is the name and the third the id.
fn read_accounts(path: &Path) -> HashMap<Vec<u8>, u32> {
    let text = fs::read(path).unwrap_or_default();
    let account = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        Some((name.to_vec(), u32::try_from(decimal(number)?).ok()?))
    };
    text.split(|byte| *byte == b'\n').filter_map(account).collect()
}

impl Acl {
    /// Parses an access list. Returns it with the permissions that correspond to it.
    pub(super) fn access(text: &[u8], permissions: u16, accounts: &Accounts) -> Result<(Self, u16), String> {
        let mut acl = Self::parse(text, accounts)?;
        for (tag, shift) in [(USER_OWNER, 6), (GROUP_OWNER, 3), (OTHER, 0)] {
            if acl.rights(tag).is_none() {
                acl.entries.push((tag, NO_ID, u8::try_from(permissions >> shift & 7).unwrap_or(0)));
            }
        }
        acl.complete()?;
        let rights = |tag| u16::from(acl.rights(tag).unwrap_or(0));
        let group = acl.rights(MASK).map_or_else(|| rights(GROUP_OWNER), u16::from);
        let permissions = permissions & !0o777 | rights(USER_OWNER) << 6 | group << 3 | rights(OTHER);
        Ok((acl, permissions))
    }

    /// Parses the default list of a directory.
    pub(super) fn default(text: &[u8], accounts: &Accounts) -> Result<Self, String> {
        let mut acl = Self::parse(text, accounts)?;
        if !acl.entries.is_empty() {
            acl.complete()?;
        }
        Ok(acl)
    }

    fn parse(text: &[u8], accounts: &Accounts) -> Result<Self, String> {
        let mut entries = Vec::new();
        // GNU tar writes a line per entry; other programs separate entries by commas.
        for line in text.split(|byte| *byte == b'\n') {
            // A comment follows: the effective permissions under the mask.
            let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
            for entry in line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty()) {
                if entries.len() == ENTRIES_MAX {
                    return Err(format!("its access control list has more than {ENTRIES_MAX} entries"));
                }
                entries.push(parse_entry(entry, accounts)?);
            }
        }
        Ok(Self { entries })
    }

    /// Sorts the entries and adds the mask if one is required.
    fn complete(&mut self) -> Result<(), String> {
        let has_names = self.entries.iter().any(|(tag, ..)| matches!(*tag, USER | GROUP));
        if has_names && self.rights(MASK).is_none() {
            let of_mask = self.entries.iter().filter(|(tag, ..)| matches!(*tag, USER | GROUP_OWNER | GROUP));
            let rights = of_mask.fold(0, |all, (.., rights)| all | rights);
            self.entries.push((MASK, NO_ID, rights));
        }
        self.entries.sort_unstable();
        if self.entries.windows(2).any(|pair| matches!(pair, [left, right] if (left.0, left.1) == (right.0, right.1))) {
            return Err("its access control list has two entries with the same tag and id".into());
        }
        let is_whole = [USER_OWNER, GROUP_OWNER, OTHER].iter().all(|tag| self.rights(*tag).is_some());
        if is_whole {
            Ok(())
        } else {
            Err("its access control list lacks the entry of the owner, the group or others".into())
        }
    }
}

/// Parses an entry: `user:lisa:rw-`, optionally with the prefix `default:`, and optionally followed by the id of the
/// name.
fn parse_entry(entry: &[u8], accounts: &Accounts) -> Result<(u16, u32, u8), String> {
    let shown = || entry.escape_ascii().take(100).map(char::from).collect::<String>();
    let broken = || format!("invalid entry in its access control list: {}", shown());
    let mut fields: Vec<&[u8]> = entry.split(|byte| *byte == b':').map(<[u8]>::trim_ascii).collect();
    if matches!(fields.first(), Some(&(b"default" | b"d"))) {
        fields.remove(0);
    }
    let (tag, name, rights, number) = match fields.as_slice() {
        [b"user" | b"u", name, rights, number @ ..] => (USER, *name, *rights, number),
        [b"group" | b"g", name, rights, number @ ..] => (GROUP, *name, *rights, number),
        [b"mask" | b"m", b"", rights] | [b"mask" | b"m", rights] => (MASK, &b""[..], *rights, &[][..]),
        [b"other" | b"o", b"", rights] | [b"other" | b"o", rights] => (OTHER, &b""[..], *rights, &[][..]),
        _ => return Err(broken()),
    };
    let rights = rights_of(rights).ok_or_else(broken)?;
    let numbers = match number {
        [] | [b""] => None,
        [number] => Some(decimal(number).ok_or_else(broken)?),
        _ => return Err(broken()),
    };
    let tag = match (tag, name) {
        (USER, b"") => USER_OWNER,
        (GROUP, b"") => GROUP_OWNER,
        (tag, _) => tag,
    };
    if !matches!(tag, USER | GROUP) {
        return Ok((tag, NO_ID, rights));
    }
    let number = match numbers.or_else(|| decimal(name)) {
        Some(number) => u32::try_from(number).ok().filter(|number| *number != NO_ID).ok_or_else(broken)?,
        None => accounts.number(tag, name).ok_or_else(|| {
            let what = if tag == USER { "user" } else { "group" };
            format!(
                "its access control list names a {what} that this machine does not have ({}): add the {what}, or make \
                 the archive with tar --xattrs --xattrs-include='*', which stores ids",
                shown()
            )
        })?,
    };
    Ok((tag, number, rights))
}

fn rights_of(text: &[u8]) -> Option<u8> {
    let bit = |letter: &u8| match letter {
        b'r' => Some(4),
        b'w' => Some(2),
        b'x' => Some(1),
        b'-' => Some(0),
        _ => None,
    };
    let is_text = (1..=3).contains(&text.len());
    if is_text { text.iter().try_fold(0, |rights, letter| Some(rights | bit(letter)?)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entries of a list, and the corresponding permissions.
    type Parsed = (Vec<(u16, u32, u8)>, u16);

    fn entries(text: &str, permissions: u16) -> Result<Parsed, String> {
        let (acl, permissions) = Acl::access(text.as_bytes(), permissions, &Accounts::default())?;
        Ok((acl.entries, permissions))
    }

    #[test]
    fn both_forms_of_texts_are_read() {
        let expected =
            vec![(1, NO_ID, 6), (2, 0, 7), (2, 4242, 4), (4, NO_ID, 4), (8, 29, 5), (16, NO_ID, 6), (32, NO_ID, 0)];
        for text in [
            "user::rw-\nuser:root:rwx\t#effective:rw-\nuser:4242:r--\ngroup::r--\ngroup:29:r-x\nmask::rw-\nother::---\n",
            "user::rw-,group::r--,other::---,user:nobody-here:rwx:0,user:4242:r--,group:audio:r-x:29,mask::rw-",
            "u::rw,g::r,o:-,u:root:rwx,u:4242:r,g:audio:rx:29,m:rw,",
        ] {
            assert_eq!(entries(text, 0o4777), Ok((expected.clone(), 0o4660)), "{text}");
        }
    }

    #[test]
    fn missing_entries_come_from_the_mode_and_the_other_entries() {
        let expected = vec![(1, NO_ID, 6), (2, 7, 5), (4, NO_ID, 4), (16, NO_ID, 5), (32, NO_ID, 1)];
        assert_eq!(entries("user:7:r-x", 0o641), Ok((expected, 0o651)));
        let (acl, permissions) =
            Acl::access(b"user::r--,group::r--,other::---", 0o777, &Accounts::default()).expect("a list");
        assert!(acl.is_plain() && permissions == 0o440);
    }

    #[test]
    fn invalid_lists_are_refused() {
        for (text, words) in [
            ("user:nobody-of-this-name:rwx", "a user that this machine does not have"),
            ("group:nobody-of-this-name:rwx:", "a group that this machine does not have"),
            ("user:1:rwz", "invalid entry"),
            ("user:1", "invalid entry"),
            ("user:1:rwx:x", "invalid entry"),
            ("user:4294967295:rwx", "invalid entry"),
            ("everyone@:rwx::allow", "invalid entry"),
            ("user:1:rwx,user:1:r--", "two entries"),
        ] {
            let said = entries(text, 0o644).expect_err(text);
            assert!(said.contains(words) && !said.contains('\n'), "{text}: {said}");
        }
        assert!(Acl::default(b"user:1:rwx", &Accounts::default()).is_err());
        assert!(Acl::default(b"", &Accounts::default()).is_ok_and(|acl| acl.is_empty()));
        let many: String = (0..9000).map(|number| format!("user:{number}:rwx,")).collect();
        assert!(entries(&many, 0o644).is_err());
    }
}
