//! Questions to a mount, and their answers.

use serde::{Deserialize, Serialize};

use crate::{mount_options::ShownOption, status::Report};

/// A question to a mount.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Question {
    /// The state of the mount.
    Status,
    /// The options of the mount.
    Options,
    /// A change of options, each as `key=value`.
    Tune(Vec<String>),
}

/// The answer to a [`Question`].
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// The state of the mount.
    Status(Box<Report>),
    /// The current options.
    Options(Vec<ShownOption>),
    /// A refusal with its reason: one line.
    Refused(String),
}
