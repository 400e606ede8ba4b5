//! One option: its name, its value, its setter and its display.

use std::{path::PathBuf, str::FromStr, time::Duration};

use super::Settings;
use crate::quantity;

/// An option of `-o`.
pub(crate) struct OptionRow {
    pub(super) name: &'static str,
    pub(super) value: Value,
    pub(super) word: Option<Word>,
    /// The effect, in one line.
    pub(super) about: &'static str,
    pub(super) default: Default,
    /// The current value, in a form that the option accepts. Without it, `floe status` does not list the option.
    pub(super) show: Option<fn(&Settings) -> String>,
    pub(super) while_mounted: WhileMounted,
}

/// The type of an option's value, with its setter.
#[derive(Clone, Copy)]
pub(super) enum Value {
    /// No value.
    Flag(fn(&mut Settings)),
    /// No value, or `on` or `off`. With "no" before its name, the option sets the opposite.
    OnOff(fn(&mut Settings, bool)),
    /// A number of bytes, up to `max`.
    Bytes { max: u64, set: fn(&mut Settings, u64) },
    /// A number from `min` to `max`.
    Count { min: u64, max: u64, set: fn(&mut Settings, u64) },
    /// A duration, up to `max`.
    Time { max: Duration, set: fn(&mut Settings, Duration) },
    /// A file or a directory.
    Path { form: &'static str, set: fn(&mut Settings, PathBuf) },
    /// Any other value; `form` describes it.
    Text { form: &'static str, set: fn(&mut Settings, &str) -> Result<(), String> },
}

/// A word that can replace the value: `off`.
#[derive(Clone, Copy)]
pub(super) struct Word {
    text: &'static str,
    set: fn(&mut Settings),
}

/// The default of an option.
#[derive(Clone, Copy)]
pub(super) enum Default {
    /// No default.
    None,
    /// A value in the notation of the option.
    Value(&'static str),
    /// A description.
    Described(&'static str),
}

/// Whether an option can change on a running mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WhileMounted {
    /// Changing it requires a new mount.
    Fixed,
    /// `floe tune` changes it. It sets only options of the engine and the volume.
    Tunable,
    /// Another command changes it; the text says which.
    Elsewhere(&'static str),
}

/// An option that is fixed while the image is mounted and is not shown.
pub(super) const fn row(name: &'static str, value: Value, about: &'static str) -> OptionRow {
    OptionRow { name, value, word: None, about, default: Default::None, show: None, while_mounted: WhileMounted::Fixed }
}

/// A value in bytes without a limit.
pub(super) const fn bytes(set: fn(&mut Settings, u64)) -> Value {
    Value::Bytes { max: u64::MAX, set }
}

/// A value with its own grammar, which `form` describes.
pub(super) const fn text(form: &'static str, set: fn(&mut Settings, &str) -> Result<(), String>) -> Value {
    Value::Text { form, set }
}

/// Parses a value into `place`.
pub(super) fn put<T: FromStr<Err: ToString>>(place: &mut T, value: &str) -> Result<(), String> {
    *place = value.parse().map_err(|error: T::Err| error.to_string())?;
    Ok(())
}

impl OptionRow {
    pub(super) const fn or(self, text: &'static str, set: fn(&mut Settings)) -> Self {
        Self { word: Some(Word { text, set }), ..self }
    }

    pub(super) const fn default(self, value: &'static str) -> Self {
        Self { default: Default::Value(value), ..self }
    }

    pub(super) const fn default_is(self, description: &'static str) -> Self {
        Self { default: Default::Described(description), ..self }
    }

    pub(super) const fn shown(self, show: fn(&Settings) -> String) -> Self {
        Self { show: Some(show), ..self }
    }

    pub(super) const fn tunable(self) -> Self {
        Self { while_mounted: WhileMounted::Tunable, ..self }
    }

    pub(super) const fn changed_elsewhere(self, place: &'static str) -> Self {
        Self { while_mounted: WhileMounted::Elsewhere(place), ..self }
    }

    /// Whether `name` is this option, or its opposite.
    pub(super) fn is(&self, name: &str) -> bool {
        self.name == name || self.is_opposite(name)
    }

    fn is_opposite(&self, name: &str) -> bool {
        matches!(self.value, Value::OnOff(_)) && name.strip_prefix("no").is_some_and(|rest| rest == self.name)
    }

    /// Whether the option is valid without a value.
    pub(super) fn stands_alone(&self) -> bool {
        matches!(self.value, Value::Flag(_) | Value::OnOff(_))
    }

    /// Sets the option, given under `name`.
    ///
    /// # Errors
    /// The value is invalid; the message says which values are valid.
    pub(super) fn set(&self, to: &mut Settings, name: &str, value: Option<&str>) -> Result<(), String> {
        let given = value.unwrap_or_default();
        if let Some(word) = self.word
            && given == word.text
        {
            (word.set)(to);
            return Ok(());
        }
        match self.value {
            Value::Flag(_) if value.is_some() => return Err("takes no value".to_owned()),
            Value::Flag(set) => set(to),
            Value::OnOff(set) => match (self.is_opposite(name), value) {
                (false, None | Some("on")) | (true, Some("off")) => set(to, true),
                (true, None | Some("on")) | (false, Some("off")) => set(to, false),
                _ => return Err(format!("'{given}' is not on or off")),
            },
            Value::Bytes { max, set } => match quantity::bytes(given)? {
                count if count > max => return Err(format!("{given} is more than {}", quantity::exact(max))),
                count => set(to, count),
            },
            Value::Count { min, max, set } => {
                let count = given.parse().ok().filter(|count| (min..=max).contains(count));
                set(to, count.ok_or_else(|| format!("'{given}' is not {}", range(min, max)))?);
            }
            Value::Time { max, set } => match (quantity::limit(given)?, self.word) {
                (Some(time), _) if time > max => return Err(format!("{given} is more than {}", quantity::time(max))),
                (Some(time), _) => set(to, time),
                (None, Some(word)) => (word.set)(to),
                (None, None) => return Err("the time must be above 0".to_owned()),
            },
            Value::Path { set, .. } => set(to, given.into()),
            Value::Text { set, .. } => set(to, given)?,
        }
        Ok(())
    }

    /// The notation of the option: `cache=SIZE`.
    pub(super) fn form(&self) -> String {
        let name = self.name;
        let form = match self.value {
            Value::Flag(_) => return name.to_owned(),
            Value::OnOff(_) => return format!("{name}, no{name}"),
            Value::Bytes { .. } => "SIZE",
            Value::Count { .. } => "N",
            Value::Time { .. } => "TIME",
            Value::Path { form, .. } | Value::Text { form, .. } => form,
        };
        let word = self.word.map_or_else(String::new, |word| format!("|{}", word.text));
        format!("{name}={form}{word}")
    }

    /// The limits of the value, if it has any.
    pub(super) fn bounds(&self) -> Option<String> {
        match self.value {
            Value::Bytes { max, .. } if max < u64::MAX => Some(format!("at most {}", quantity::exact(max))),
            Value::Time { max, .. } if max < Duration::MAX => Some(format!("at most {}", quantity::time(max))),
            Value::Count { min: 0, max: u64::MAX, .. } => None,
            Value::Count { min, max: u64::MAX, .. } => Some(format!("at least {min}")),
            Value::Count { min, max, .. } => Some(format!("{min} to {max}")),
            _ => None,
        }
    }

    /// The default of the option as text.
    pub(super) fn default_text(&self) -> Option<&'static str> {
        match self.default {
            Default::None => None,
            Default::Value(text) | Default::Described(text) => Some(text),
        }
    }
}

fn range(min: u64, max: u64) -> String {
    match (min, max) {
        (0, u64::MAX) => "a number".to_owned(),
        (_, u64::MAX) => format!("a number of at least {min}"),
        _ => format!("a number from {min} to {max}"),
    }
}
