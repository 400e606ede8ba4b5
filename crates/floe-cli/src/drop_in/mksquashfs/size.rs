//! Sizes on the command line.

/// A size in bytes: a number with an optional unit of KiB, MiB or GiB.
pub(in crate::drop_in) fn size(text: &str) -> Option<u64> {
    let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kb" | "kbytes" => 10,
        "m" | "mb" | "mbytes" => 20,
        "g" | "gb" | "gbytes" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [
            ("4096", Some(4096)),
            ("128K", Some(128 << 10)),
            ("1M", Some(1 << 20)),
            ("1Mbytes", Some(1 << 20)),
            ("2g", Some(2 << 30)),
            ("", None),
            ("K", None),
            ("1X", None),
            ("99999999999999999G", None),
        ] {
            assert_eq!(size(text), expected, "{text}");
        }
    }
}
