//! Options of remote images.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

/// Options of remote images.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RemoteOptions {
    /// The behaviour of reads while the server cannot be reached.
    pub outage: Outage,
    /// Whether plain HTTP is used for registries; it is always used for those on this machine.
    pub plain_http: bool,
    /// How long a server may be silent before a request is abandoned.
    pub stall: Duration,
    /// The maximum number of requests in flight to one host.
    pub connections_max: usize,
    /// A file with credentials in the form of docker's `config.json`, which is searched before those of docker and Podman.
    pub auth_file: Option<PathBuf>,
    /// The URLs of mirrors of all registries, which are asked before those of `hosts.toml`.
    pub mirrors: Vec<String>,
}

/// The behaviour of reads while the server cannot be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outage {
    /// Fail with `EIO` after a few attempts.
    Eio,
    /// Retry for this time, then fail with `EIO`.
    Wait(Duration),
}

/// The text is not an [`Outage`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadOutage(String);

/// The maximum duration of the attempts of [`Outage::Eio`].
const EIO_PATIENCE: Duration = Duration::from_secs(15);

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            outage: Outage::Wait(Duration::from_secs(60)),
            plain_http: false,
            stall: Duration::from_secs(20),
            connections_max: 16,
            auth_file: None,
            mirrors: Vec::new(),
        }
    }
}

impl Outage {
    /// How long a read retries.
    pub const fn patience(self) -> Duration {
        match self {
            Self::Eio => EIO_PATIENCE,
            Self::Wait(time) => time,
        }
    }

    /// The policy for opening an image: it gives up as early as [`Outage::Eio`], because a user may be waiting.
    pub(crate) fn at_open(self) -> Self {
        match self {
            Self::Wait(time) if time < EIO_PATIENCE => self,
            _ => Self::Eio,
        }
    }

    /// The maximum number of attempts of a read.
    pub(crate) const fn attempts_max(self) -> u32 {
        match self {
            Self::Eio => 5,
            Self::Wait(_) => u32::MAX,
        }
    }
}

impl FromStr for Outage {
    type Err = BadOutage;

    fn from_str(text: &str) -> Result<Self, BadOutage> {
        let bad = || BadOutage(text.to_owned());
        if text == "eio" {
            return Ok(Self::Eio);
        }
        let time = text.strip_prefix("wait:").ok_or_else(bad)?;
        let digits = time.trim_end_matches(|character: char| character.is_ascii_alphabetic());
        let unit_s = match &time[digits.len()..] {
            "" | "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(bad()),
        };
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse::<u64>().ok().filter(|_| is_number).ok_or_else(bad)?;
        number.checked_mul(unit_s).map(|seconds| Self::Wait(Duration::from_secs(seconds))).ok_or_else(bad)
    }
}

impl fmt::Display for Outage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eio => formatter.write_str("eio"),
            Self::Wait(time) => write!(formatter, "wait:{}s", time.as_secs()),
        }
    }
}

impl fmt::Display for BadOutage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "'{}' is neither 'eio' nor 'wait:DURATION', such as wait:60s, wait:10m or wait:2h", self.0)
    }
}

impl std::error::Error for BadOutage {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read() {
        for (text, expected) in [
            ("eio", Some(Outage::Eio)),
            ("wait:60", Some(Outage::Wait(Duration::from_secs(60)))),
            ("wait:0s", Some(Outage::Wait(Duration::ZERO))),
            ("wait:2m", Some(Outage::Wait(Duration::from_secs(120)))),
            ("wait:3h", Some(Outage::Wait(Duration::from_secs(10_800)))),
            ("wait:", None),
            ("wait:s", None),
            ("wait:-1", None),
            ("wait:5x", None),
            ("wait:99999999999999999999", None),
            ("wait:18446744073709551615h", None),
            ("wait", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<Outage>().ok(), expected, "{text}");
        }
    }
}
