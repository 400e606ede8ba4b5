//! What load is asked for.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::{Error, Result};

/// The most burners of one load.
const BURNERS_MAX: u32 = 1024;
/// The smallest memory limit that leaves a process room to begin.
const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// One kind of load: the value of an option `--load`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadKind {
    /// `cpu=8x90%`: this many processes, each of which wants this much of a CPU.
    Cpu {
        /// How many processes.
        count: u32,
        /// Percent of a CPU that each wants: 1 to 100.
        percent: u32,
    },
    /// `randread=FILE`: random reads of 4 KiB.
    RandomRead {
        /// From this file.
        file: PathBuf,
    },
    /// `memory=40M`: what is measured lives in a control group with this limit, beside a process that takes half of it
    /// over and over, and one that fills the rest with a file's pages.
    Memory {
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// `fio:JOB.fio`: the real fio with this job file.
    Fio {
        /// The job file.
        job: PathBuf,
    },
}

impl FromStr for LoadKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let unknown = || Error::new(format!("load {text:?}: use cpu=8x90%, randread=FILE, memory=40M or fio:JOB.fio"));
        if let Some(job) = text.strip_prefix("fio:").filter(|job| !job.is_empty()) {
            return Ok(Self::Fio { job: job.into() });
        }
        let (key, value) = text.split_once('=').filter(|(_, value)| !value.is_empty()).ok_or_else(unknown)?;
        match key {
            "cpu" => {
                let (count, percent) = value.split_once('x').ok_or_else(unknown)?;
                let count = count.parse().map_err(|_| unknown())?;
                let percent = percent.trim_end_matches('%').parse().map_err(|_| unknown())?;
                if !(1..=100).contains(&percent) || !(1..=BURNERS_MAX).contains(&count) {
                    return Err(Error::new(format!(
                        "load {text:?}: 1 to {BURNERS_MAX} processes of 1 to 100 % are possible"
                    )));
                }
                Ok(Self::Cpu { count, percent })
            }
            "randread" => Ok(Self::RandomRead { file: value.into() }),
            "memory" => {
                let limit_bytes = parse_size(value).ok_or_else(unknown)?;
                if limit_bytes < MEMORY_BYTES_MIN {
                    return Err(Error::new(format!("load {text:?}: no program begins in less than 8M")));
                }
                Ok(Self::Memory { limit_bytes })
            }
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for LoadKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu { count, percent } => write!(out, "cpu={count}x{percent}%"),
            Self::RandomRead { file } => write!(out, "randread={}", file.display()),
            Self::Memory { limit_bytes } if limit_bytes % (1 << 20) == 0 => {
                write!(out, "memory={}M", limit_bytes >> 20)
            }
            Self::Memory { limit_bytes } => write!(out, "memory={limit_bytes}"),
            Self::Fio { job } => write!(out, "fio:{}", job.display()),
        }
    }
}

/// A number of bytes with an optional K, M or G (of 1024).
pub fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_written() {
        let rows = [
            ("cpu=8x90%", Some("cpu=8x90%")),
            ("cpu=1x100", Some("cpu=1x100%")),
            ("cpu=0x50%", None),
            ("cpu=4x0%", None),
            ("cpu=4x101%", None),
            ("cpu=4", None),
            ("cpu=-1x5%", None),
            ("randread=/some/file", Some("randread=/some/file")),
            ("randread=", None),
            ("memory=40M", Some("memory=40M")),
            ("memory=41943041", Some("memory=41943041")),
            ("memory=1k", None),
            ("memory=99999999999G", None),
            ("memory=M", None),
            ("fio:job.fio", Some("fio:job.fio")),
            ("fio:", None),
            ("disk=1", None),
            ("", None),
        ];
        for (text, expected) in rows {
            let read = text.parse::<LoadKind>().ok().map(|kind| kind.to_string());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }
}
