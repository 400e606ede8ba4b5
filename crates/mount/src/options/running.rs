//! The options of a running mount: `floe status` lists them, `floe tune` changes some.

use serde::{Deserialize, Serialize};

use super::{
    Settings,
    row::WhileMounted,
    table::{find, rows},
};

/// An option with its current value.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct ShownOption {
    /// The name for `-o`.
    pub key: String,
    /// The value in the notation of `-o`.
    pub value: String,
    /// Whether it can change while the image is mounted.
    pub is_tunable: bool,
}

impl Settings {
    /// The options with their values; those that `floe tune` can change come first.
    pub fn shown(&self) -> Vec<ShownOption> {
        let mut options: Vec<_> = rows()
            .filter_map(|row| {
                let is_tunable = row.while_mounted == WhileMounted::Tunable;
                Some(ShownOption { key: row.name.to_owned(), value: row.show?(self), is_tunable })
            })
            .collect();
        options.sort_by_key(|option| !option.is_tunable);
        options
    }

    /// The settings after changes that a user made to a running mount with another version of the program. Changes that this
    /// version does not support are left out.
    pub(crate) fn with_tuned(&self, changes: &[String]) -> Self {
        let tuned = |settings: Self, change| settings.tuned(std::slice::from_ref(change)).unwrap_or(settings);
        changes.iter().fold(self.clone(), tuned)
    }

    /// The settings after `changes` of options of the engine and the volume, each of the form `key=value`.
    ///
    /// # Errors
    /// An option is unknown, is fixed while the image is mounted, or does not accept the value. The message is one
    /// line.
    pub fn tuned(&self, changes: &[String]) -> Result<Self, String> {
        let mut settings = self.clone();
        for change in changes {
            let (key, value) = match change.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (change.as_str(), None),
            };
            let key = key.replace('_', "-");
            let row = find(&key).ok_or_else(|| format!("unknown option {key}: floe tune DIR lists all options"))?;
            match row.while_mounted {
                WhileMounted::Fixed => {
                    return Err(format!(
                        "{key} cannot change while the image is mounted: mount it again with -o {change}"
                    ));
                }
                WhileMounted::Elsewhere(place) => return Err(format!("{key} is {place}")),
                WhileMounted::Tunable if value.is_none() && !row.stands_alone() => {
                    return Err(format!("{key} needs a value: {key}=…"));
                }
                WhileMounted::Tunable => {
                    row.set(&mut settings, &key, value).map_err(|reason| format!("{key}: {reason}"))?;
                }
            }
        }
        Ok(settings)
    }
}
