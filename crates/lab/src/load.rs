//! The kinds of background load, which ends with the measurement, even if that fails or is killed.

#[expect(clippy::module_inception, reason = "the module is the noun and its parts")]
mod load;

pub use load::Load;

pub(crate) use load::end;

use std::{fmt, path::PathBuf, str::FromStr};

use floe_image::ShownName;

use crate::{Error, Result};

/// The maximum number of burners in one load.
const BURNERS_MAX: u32 = 1024;
/// The smallest memory limit with which a process can start.
const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// One kind of load: the value of `--load`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadKind {
    /// `cpu=8x90%`: this many processes that each demand this share of a CPU.
    Cpu {
        /// The number of processes.
        count: u32,
        /// The percentage of a CPU that each demands: 1 to 100.
        percent: u32,
    },
    /// `randread=FILE`: random reads of 4 KiB.
    RandomRead {
        /// The file to read.
        file: PathBuf,
    },
    /// `memory=40M` or `memory=40M:30M`: measured processes run in a control group with this limit. In the same group,
    /// one process repeatedly allocates half of the limit (or the second value), and another fills the rest with file
    /// pages.
    Memory {
        /// The limit in bytes.
        limit_bytes: u64,
        /// How much is allocated repeatedly, in bytes.
        hog_bytes: u64,
    },
    /// `fio:JOB.fio`: runs fio with this job file.
    Fio {
        /// The job file.
        job: PathBuf,
    },
}

impl FromStr for LoadKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let unknown =
            || Error::new(format!("load {text:?}: use cpu=8x90%, randread=FILE, memory=40M[:HOG] or fio:JOB.fio"));
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
                    return Err(Error::new(format!("load {text:?}: use 1 to {BURNERS_MAX} processes of 1 to 100 %")));
                }
                Ok(Self::Cpu { count, percent })
            }
            "randread" => Ok(Self::RandomRead { file: value.into() }),
            "memory" => {
                let (limit, hog) = value.split_once(':').map_or((value, None), |(limit, hog)| (limit, Some(hog)));
                let limit_bytes = parse_size(limit).ok_or_else(unknown)?;
                let hog_bytes = hog.map_or(Some(limit_bytes / 2), parse_size).ok_or_else(unknown)?;
                if limit_bytes < MEMORY_BYTES_MIN {
                    return Err(Error::new(format!(
                        "load {text:?}: the limit must be at least 8M, or no program starts"
                    )));
                }
                if hog_bytes > limit_bytes - limit_bytes / 16 {
                    return Err(Error::new(format!(
                        "load {text:?}: the hog must leave at least a sixteenth of the limit"
                    )));
                }
                Ok(Self::Memory { limit_bytes, hog_bytes })
            }
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for LoadKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu { count, percent } => write!(out, "cpu={count}x{percent}%"),
            Self::RandomRead { file } => write!(out, "randread={}", file.shown()),
            Self::Memory { limit_bytes, hog_bytes } => {
                write!(out, "memory={}", size_text(*limit_bytes))?;
                if *hog_bytes == limit_bytes / 2 { Ok(()) } else { write!(out, ":{}", size_text(*hog_bytes)) }
            }
            Self::Fio { job } => write!(out, "fio:{}", job.shown()),
        }
    }
}

fn size_text(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{}M", bytes >> 20) } else { bytes.to_string() }
}

/// Parses a number of bytes with an optional suffix K, M or G (powers of 1024).
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
            ("memory=64M:48M", Some("memory=64M:48M")),
            ("memory=64M:61M", None),
            ("memory=64M:x", None),
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
