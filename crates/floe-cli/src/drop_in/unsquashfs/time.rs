//! Times on the command line.

use std::{
    ffi::OsStr,
    process::{Command, Stdio},
};

use floe::Timestamp;
use floe_image::ShownName;

/// Parses a time: seconds since the epoch, or a text that the program `date` understands.
///
/// # Errors
/// A message.
pub(in crate::drop_in) fn parse(text: &OsStr) -> Result<Timestamp, String> {
    let number = text.to_str().and_then(|text| text.trim_start().parse::<u32>().ok());
    let seconds = match number {
        Some(seconds) => i64::from(seconds),
        None => ask_date(text)?,
    };
    if seconds < 0 {
        return Err(format!("'{}' is before 1970", text.shown()));
    }
    if seconds > i64::from(u32::MAX) {
        return Err(format!("'{}' is after 2106-02-07 06:28:15 UTC", text.shown()));
    }
    Ok(Timestamp { seconds, nanoseconds: 0 })
}

/// The seconds since the epoch that `date` prints for a text.
fn ask_date(text: &OsStr) -> Result<i64, String> {
    let output =
        Command::new("date").arg("-d").arg(text).arg("+%s").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = output.map_err(|error| format!("the program date cannot be run: {error}"))?;
    let seconds = std::str::from_utf8(&output.stdout).ok().and_then(|printed| printed.trim_end().parse().ok());
    seconds.filter(|_| output.status.success()).ok_or_else(|| format!("'{}' is not a time", text.shown()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_or_texts() {
        for (text, expected) in [
            ("0", Some(0)),
            ("4294967295", Some(4_294_967_295)),
            ("+5", Some(5)),
            ("@7", Some(7)),
            ("Wed Feb 15 21:02:39 GMT 2023", Some(1_676_494_959)),
            ("4294967296", None),
            ("-1", None),
            ("1960-01-01", None),
            ("2200-01-01", None),
            ("no time", None),
        ] {
            let parsed = parse(OsStr::new(text)).ok().map(|time| time.seconds);
            assert_eq!(parsed, expected, "{text}");
        }
    }
}
