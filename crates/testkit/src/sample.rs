//! The part of the cases that one run tests.

use std::env;

/// The number of parts from which `FLOE_IMAGES` selects.
pub(crate) const PARTS: u64 = 20;

/// The number below [`PARTS`] in `FLOE_IMAGES`, by default 0; `None` if it is `all`.
///
/// # Panics
/// `FLOE_IMAGES` is neither `all` nor such a number.
pub(crate) fn part() -> Option<u64> {
    match env::var("FLOE_IMAGES") {
        Ok(all) if all == "all" => None,
        Ok(number) => Some(number.parse().ok().filter(|part| *part < PARTS).expect("FLOE_IMAGES: 'all', or 0 to 19")),
        Err(_) => Some(0),
    }
}

/// Every `step`th row, from another one on for each number in `FLOE_IMAGES`; all rows with `FLOE_IMAGES=all`.
///
/// # Panics
/// `FLOE_IMAGES` is neither `all` nor a number below 20, or `step` is zero.
pub fn sample<Row>(rows: &[Row], step: usize) -> Vec<&Row> {
    match part() {
        None => rows.iter().collect(),
        Some(part) => rows.iter().skip(usize::try_from(part).unwrap_or(0) % step).step_by(step).collect(),
    }
}
