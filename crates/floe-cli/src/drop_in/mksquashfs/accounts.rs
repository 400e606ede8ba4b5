//! Users, groups and modes on the command line.

use std::{collections::HashMap, fs};

/// The users and groups of this machine, by name.
pub(super) struct Accounts {
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
}

impl Default for Accounts {
    fn default() -> Self {
        Self { users: read("/etc/passwd"), groups: read("/etc/group") }
    }
}

impl Accounts {
    /// The user with this number or name.
    pub(super) fn user(&self, text: &str) -> Option<u32> {
        number(text).or_else(|| self.users.get(text).copied())
    }

    /// The group with this number or name.
    pub(super) fn group(&self, text: &str) -> Option<u32> {
        number(text).or_else(|| self.groups.get(text).copied())
    }

    /// The name of a user.
    pub(super) fn user_name(&self, id: u32) -> &str {
        name_of(&self.users, id)
    }

    /// The name of a group.
    pub(super) fn group_name(&self, id: u32) -> &str {
        name_of(&self.groups, id)
    }
}

/// Permission bits in octal.
pub(super) fn octal_mode(text: &str) -> Option<u16> {
    u16::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777)
}

/// The last number stands for no owner.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX)
}

fn name_of(names: &HashMap<String, u32>, id: u32) -> &str {
    let name = names.iter().filter(|(_, known)| **known == id).map(|(name, _)| name.as_str()).min();
    name.unwrap_or("unknown")
}

fn read(file: &str) -> HashMap<String, u32> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let account = |line: &str| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next()?, fields.nth(1)?);
        Some((name.to_owned(), id.parse().ok()?))
    };
    text.lines().filter_map(account).collect()
}
