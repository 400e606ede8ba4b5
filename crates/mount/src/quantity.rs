//! Parses and prints sizes and times.

use std::time::Duration;

/// Parses a number of bytes: `4096`, `64k`, `64M`, `1GiB`.
///
/// # Errors
/// The text is not a size; the message lists the valid forms.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(0),
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        "t" | "tb" | "tib" => Some(40),
        _ => None,
    };
    let number: Option<u64> = number.parse().ok();
    number
        .zip(shift)
        .and_then(|(number, shift)| number.checked_mul(1 << shift))
        .ok_or_else(|| format!("'{text}' is not a size: give a number of bytes, or one with k, M or G"))
}

/// Prints a number of bytes with the largest unit that is exact.
pub fn exact(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "k")];
    let unit = units.iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Parses a time: `30` and `30s` are seconds; other units are `50us`, `500ms` and `2m`. `0` and `off` mean no limit and
/// return `None`.
///
/// # Errors
/// The text is not a time; the message lists the valid forms.
pub fn limit(text: &str) -> Result<Option<Duration>, String> {
    if text == "off" {
        return Ok(None);
    }
    let (number, unit) = split(text);
    let microseconds = match unit {
        "us" => Some(1),
        "ms" => Some(1000),
        "" | "s" => Some(1_000_000),
        "m" | "min" => Some(60_000_000),
        _ => None,
    };
    let number: Option<u64> = number.parse().ok();
    let limit = number.zip(microseconds).and_then(|(number, unit)| number.checked_mul(unit));
    match limit {
        Some(0) => Ok(None),
        Some(microseconds) => Ok(Some(Duration::from_micros(microseconds))),
        None => Err(format!("'{text}' is not a time: give a number of seconds, or one with us, ms, s or m")),
    }
}

/// Prints a time with the largest unit that is exact.
pub fn time(time: Duration) -> String {
    match time.as_micros() {
        microseconds if microseconds % 1_000_000 == 0 => format!("{}s", microseconds / 1_000_000),
        microseconds if microseconds % 1000 == 0 => format!("{}ms", microseconds / 1000),
        microseconds => format!("{microseconds}us"),
    }
}

/// Splits a text after its digits.
fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("64k", Some(64 << 10)),
            ("64M", Some(64 << 20)),
            ("1GiB", Some(1 << 30)),
            ("2tb", Some(2 << 40)),
            ("", None),
            ("k", None),
            ("-1", None),
            ("1.5G", None),
            ("5x", None),
            ("99999999999999999999", None),
            ("18446744073709551615k", None),
        ] {
            assert_eq!(bytes(text).ok(), expected, "{text}");
            if let Some(number) = expected {
                assert_eq!(bytes(&exact(number)), Ok(number), "{text}");
            }
        }
        assert_eq!((exact(64 << 20), exact(0), exact(1025)), ("64M".to_owned(), "0".to_owned(), "1025".to_owned()));
    }

    #[test]
    fn times_have_units_and_none_is_no_limit() {
        for (text, expected) in [
            ("30", Ok(Some(Duration::from_secs(30)))),
            ("30s", Ok(Some(Duration::from_secs(30)))),
            ("500ms", Ok(Some(Duration::from_millis(500)))),
            ("50us", Ok(Some(Duration::from_micros(50)))),
            ("2m", Ok(Some(Duration::from_secs(120)))),
            ("0", Ok(None)),
            ("off", Ok(None)),
            ("", Err(())),
            ("s", Err(())),
            ("2h", Err(())),
        ] {
            assert_eq!(limit(text).map_err(drop), expected, "{text}");
            if let Ok(Some(expected)) = expected {
                assert_eq!(limit(&time(expected)), Ok(Some(expected)), "{text}");
            }
        }
    }
}
