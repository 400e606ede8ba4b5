//! The configuration of fusermount3.

use std::fs;

/// The path of the file.
const PATH: &str = "/etc/fuse.conf";

/// The maximum number of FUSE mounts of users, unless the file says another.
const MOUNTS_MAX: u32 = 1000;

/// What the configuration of fusermount3 permits users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FuseConfiguration {
    /// The maximum number of FUSE mounts of the machine above which users may make no others; `None` if there is no limit.
    pub mounts_max: Option<u32>,
    /// Whether users may admit others to their mounts.
    pub users_may_admit_others: bool,
}

impl FuseConfiguration {
    /// Reads the file. A missing file permits what an empty one does.
    pub fn read() -> Self {
        Self::parse(&fs::read_to_string(PATH).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let mut configuration = Self { mounts_max: Some(MOUNTS_MAX), users_may_admit_others: false };
        for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
            if line == "user_allow_other" {
                configuration.users_may_admit_others = true;
            }
            let value = line.strip_prefix("mount_max").and_then(|rest| rest.trim_start().strip_prefix('='));
            if let Some(number) = value.and_then(|value| value.trim().parse::<i64>().ok()) {
                configuration.mounts_max = match number {
                    -1 => None,
                    number => Some(u32::try_from(number).unwrap_or(0)),
                };
            }
        }
        configuration
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_fusermount() {
        for (text, mounts_max, users_may_admit_others) in [
            ("", Some(1000), false),
            ("# user_allow_other\n#mount_max = 7\n", Some(1000), false),
            ("user_allow_other", Some(1000), true),
            ("  user_allow_other  # for all\nmount_max = 7\n", Some(7), true),
            ("mount_max=20\nuser_allow_others\n", Some(20), false),
            ("mount_max = -1\n", None, false),
            ("mount_max = -2\nmount_max_ = 9\n", Some(0), false),
            ("mount_max = many\nallow user_allow_other\n", Some(1000), false),
        ] {
            assert_eq!(
                FuseConfiguration::parse(text),
                FuseConfiguration { mounts_max, users_may_admit_others },
                "{text}"
            );
        }
    }
}
