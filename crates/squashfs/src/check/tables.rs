//! The superblock and the tables, apart from the tree.

use std::collections::HashSet;

use floe_image::{Place, Result};

use super::{Finding, Report};
use crate::{
    Squashfs,
    format::{self, XattrId},
    read::XattrPrefix,
};

pub(super) fn check(squashfs: &Squashfs, report: &mut Report<'_>) {
    check_superblock(squashfs, report);
    for index in 0..squashfs.superblock.fragment_count {
        if let Err(error) = squashfs.fragment(index) {
            report.add(Finding::of(&error));
        }
    }
    let Some(sets) = squashfs.xattr_sets() else { return };
    for index in 0..sets.entry_count() {
        let checked = sets.entry(&squashfs.metadata, index).and_then(|set| check_xattrs(squashfs, &set, report));
        if let Err(error) = checked {
            report.add(Finding::of(&error));
        }
    }
}

fn check_superblock(squashfs: &Squashfs, report: &mut Report<'_>) {
    let superblock = &squashfs.superblock;
    let flags = superblock.flags;
    let place = Place::at(superblock.offset);
    let mut warn = |is_wrong: bool, rule: &'static str| {
        if is_wrong {
            report.add(Finding::warning(rule, place));
        }
    };
    warn(flags.unknown() != 0, "superblock has unknown flags");
    warn(flags.has(format::FLAG_CHECK), "superblock has a flag of older versions");
    warn(
        flags.has(format::FLAG_NO_FRAGMENTS) && superblock.fragment_count > 0,
        "there are fragments, although a flag says that there are none",
    );
    warn(
        flags.has(format::FLAG_EXPORTABLE) != superblock.export_table_start.is_some(),
        "the export flag and the export table do not go together",
    );
    warn(
        flags.has(format::FLAG_NO_XATTRS) && superblock.xattr_id_table_start.is_some(),
        "there are attributes, although a flag says that there are none",
    );
}

/// Reads a set of attributes, names and values.
fn check_xattrs(squashfs: &Squashfs, set: &XattrId, report: &mut Report<'_>) -> Result<()> {
    let place = Place::at(squashfs.xattr_attributes().map_or(0, |table| table.start));
    let mut names = HashSet::new();
    let mut bytes = Some(0_u64);
    let mut attributes = squashfs.xattr_list(set)?;
    while let Some(attribute) = attributes.next()? {
        if XattrPrefix::from_kind(attribute.kind).is_none() {
            report.add(Finding::warning("attribute with an unknown prefix, which is not shown", place));
        }
        if attribute.name.is_empty() || attribute.name.contains(&0) {
            report.add(Finding::error("attribute whose name is empty or holds a NUL", place));
        }
        let value = attribute.value()?;
        let name_len = attribute.full_name().map(|name| name.len().saturating_add(1));
        let len = name_len.map(|len| u64::try_from(len.saturating_add(value.len())).unwrap_or(u64::MAX));
        bytes = bytes.and_then(|bytes| bytes.checked_add(len?));
        let prefix = attribute.kind & format::XATTR_PREFIX_MASK;
        if !names.insert((prefix, attribute.name)) {
            report.add(Finding::error("attribute that an inode has twice", place));
        }
    }
    if let Some(bytes) = bytes.filter(|bytes| *bytes != u64::from(set.size)) {
        let rule = format!("attributes that take {bytes} bytes where their set says {}", set.size);
        report.add(Finding::warning(rule, place));
    }
    Ok(())
}
