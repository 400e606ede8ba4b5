//! Descriptions of an image.
//!
//! Each function returns a value with public fields for programs; its `Display` form is a report in lines.

mod inode;
mod overview;
mod statistics;

pub use inode::{InodeDescription, describe_inode, hole_bytes};
pub use overview::{Overview, TablePlace, describe_image};
pub use statistics::{DataStatistics, InodeStatistics, Statistics, TableStatistics, count};

/// `part` of `whole` in percent with one decimal.
fn percent(part: u64, whole: u64) -> String {
    let tenths = u128::from(part).saturating_mul(1000).checked_div(u128::from(whole)).unwrap_or_default();
    format!("{}.{} %", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn percentages_never_overflow() {
        for (part, whole, expected) in
            [(1, 3, "33.3 %"), (3, 2, "150.0 %"), (5, 0, "0.0 %"), (u64::MAX, 1, "1844674407370955161500.0 %")]
        {
            assert_eq!(percent(part, whole), expected);
        }
    }
}
