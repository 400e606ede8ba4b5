//! Questions to a mount, and their answers.

use serde::{Deserialize, Serialize};

use crate::{handover::State, options::ShownOption, status::Report};

/// A question to a mount.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// The state of the mount.
    Status,
    /// The options of the mount.
    Options,
    /// A change of options, each as `key=value`.
    Tune(Vec<String>),
    /// Whether the kernel's connection for the mount is alive.
    Connection,
    /// How the serving process was started.
    Invocation,
    /// The state and the descriptors of the mount, for a process that takes it over. More questions follow on the same
    /// connection: [`Question::Stop`], then [`Question::Serves`].
    HandOver,
    /// The other process is ready: this one stops taking requests.
    Stop,
    /// The other process serves the mount from now on.
    Serves,
}

/// The answer to a [`Question`].
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The state of the mount.
    Status(Box<Report>),
    /// The current options.
    Options(Vec<ShownOption>),
    /// The kernel's connection for the mount.
    Connection {
        /// Whether it is alive. It outlives an unmount if the files are in use elsewhere.
        is_alive: bool,
    },
    /// How the serving process was started: the message carries a descriptor of a sealed file.
    Invocation,
    /// The state of a mount for its next process. The message carries descriptors: those of the device, then these.
    State {
        /// The state.
        state: Box<State>,
        /// Whether there is the socket of fusermount3.
        has_auto_unmount: bool,
        /// Whether there is the memory file with the state.
        has_state_file: bool,
    },
    /// The process has stopped taking requests.
    Stopped,
    /// A refusal with its reason: one line.
    Refused(String),
}
