//! The summary that `floe mkfs` prints: a line for people, or JSON.

use std::time::Duration;

use floe_image::Shown;
use floe_mkfs::{Summary, TypeUsage};
use indicatif::{HumanBytes, HumanCount, HumanDuration};
use serde::Serialize;

use crate::erofs_report::uuid_text;

/// Shorter times are printed with a fraction.
const MINUTE: Duration = Duration::from_secs(60);

/// The summary as JSON.
#[derive(Serialize)]
pub(super) struct SummaryRecord {
    inodes: u64,
    files: u64,
    directories: u64,
    content_bytes: u64,
    duplicate_bytes: u64,
    packed_bytes: u64,
    data_bytes: u64,
    metadata_bytes: u64,
    image_bytes: u64,
    /// The hash tree behind the image, which `image_bytes` does not contain.
    verity_bytes: u64,
    xattrs_left_out: u64,
    warnings: Vec<String>,
    /// SquashFS has none.
    uuid: Option<String>,
    scan_seconds: f64,
    data_seconds: f64,
    verified_inodes: u64,
    verified_bytes: u64,
    verify_seconds: f64,
    seconds: f64,
    types: Vec<TypeRecord>,
}

/// What the files of one type take, as JSON.
#[derive(Serialize)]
struct TypeRecord {
    /// Without an extension, and for rare types together, none.
    extension: Option<String>,
    files: u64,
    content_bytes: u64,
    stored_bytes: u64,
    packed_bytes: u64,
    shared_bytes: u64,
    hole_bytes: u64,
}

impl TypeRecord {
    fn new(usage: &TypeUsage) -> Self {
        let TypeUsage { extension, files, content_bytes, stored_bytes, packed_bytes, shared_bytes, hole_bytes } =
            usage.clone();
        Self { extension, files, content_bytes, stored_bytes, packed_bytes, shared_bytes, hole_bytes }
    }
}

impl SummaryRecord {
    pub(super) fn new(summary: &Summary, verity_bytes: u64) -> Self {
        Self {
            inodes: summary.inodes,
            files: summary.files,
            directories: summary.directories,
            content_bytes: summary.content_bytes,
            duplicate_bytes: summary.duplicate_bytes,
            packed_bytes: summary.packed_bytes,
            data_bytes: summary.data_bytes,
            metadata_bytes: summary.metadata_bytes,
            image_bytes: summary.image_bytes,
            verity_bytes,
            xattrs_left_out: summary.xattrs_left_out,
            warnings: summary.warnings.clone(),
            uuid: summary.squashfs.is_none().then(|| uuid_text(&summary.uuid)),
            scan_seconds: summary.scan_time.as_secs_f64(),
            data_seconds: summary.data_time.as_secs_f64(),
            verified_inodes: summary.verified.unwrap_or_default().inodes,
            verified_bytes: summary.verified.unwrap_or_default().content_bytes,
            verify_seconds: summary.verify_time.as_secs_f64(),
            seconds: summary.total_time.as_secs_f64(),
            types: summary.types.iter().map(TypeRecord::new).collect(),
        }
    }
}

/// A table of what the types of files take, with a line for each.
pub(super) fn type_table(types: &[TypeUsage]) -> String {
    let size = |bytes: u64| if bytes == 0 { "-".to_owned() } else { HumanBytes(bytes).to_string() };
    let row = |one: &TypeUsage| {
        let name = one.extension.as_ref().map_or("others".to_owned(), |name| Shown(name.as_bytes()).to_string());
        let [content, stored, packed, shared, holes] =
            [one.content_bytes, one.stored_bytes, one.packed_bytes, one.shared_bytes, one.hole_bytes].map(size);
        [name, HumanCount(one.files).to_string(), content, stored, packed, shared, holes]
    };
    let head = ["type", "files", "content", "stored", "in fragments", "shared", "holes"].map(str::to_owned);
    let rows: Vec<[String; 7]> = [head].into_iter().chain(types.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut table = String::new();
    for [name, others @ ..] in &rows {
        table += &format!("{name:<0$}", width(0));
        others.iter().zip(1..).for_each(|(cell, column)| table += &format!("  {cell:>0$}", width(column)));
        table.push('\n');
    }
    table
}

/// The summary as a line.
pub(super) fn described(summary: &Summary, verity_bytes: u64) -> String {
    let share = match summary.content_bytes {
        // A tree without content has no share of it.
        0 => String::new(),
        content => format!(", {} % of it", 100 * u128::from(summary.image_bytes) / u128::from(content)),
    };
    let tree =
        if verity_bytes > 0 { format!(" and a hash tree of {}", HumanBytes(verity_bytes)) } else { String::new() };
    let time = match summary.total_time {
        time if time < MINUTE => format!("{time:.1?}"),
        time => HumanDuration(time).to_string(),
    };
    let verified = summary.verified.map(|verified| {
        format!("; {} of it read back in {:.1?}", HumanBytes(verified.content_bytes), summary.verify_time)
    });
    format!(
        "{}{tree} of {} inodes with {} of content{share}, in {time}{}",
        HumanBytes(summary.image_bytes),
        HumanCount(summary.inodes),
        HumanBytes(summary.content_bytes),
        verified.unwrap_or_default()
    )
}
