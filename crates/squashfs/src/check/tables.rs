//! Checks the superblock and all tables except the tree.

use std::collections::{HashMap, HashSet};

use floe_image::{Place, Result};

use super::{Claims, Finding, Report};
use crate::{
    Squashfs,
    format::{self, XattrId},
    read::{XattrBytes, XattrPrefix},
};

pub(super) fn check(squashfs: &Squashfs, report: &mut Report<'_>) {
    check_superblock(squashfs, report);
    for index in 0..squashfs.superblock.fragment_count {
        if report.is_cancelled() {
            return;
        }
        if let Err(error) = squashfs.fragment(index) {
            report.add(Finding::from(&error));
        }
    }
    let Some(sets) = squashfs.xattr_sets() else { return };
    let mut seen = SeenXattrs::default();
    for index in 0..sets.entry_count() {
        if report.is_cancelled() {
            return;
        }
        let checked = sets.entry(&squashfs.metadata, index).and_then(|set| seen.check(squashfs, &set, report));
        if let Err(error) = checked {
            report.add(Finding::from(&error));
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
        "fragments exist, but the flags state that there are none",
    );
    warn(
        flags.has(format::FLAG_EXPORTABLE) != superblock.export_table_start.is_some(),
        "the export flag contradicts the presence of the export table",
    );
    warn(
        flags.has(format::FLAG_NO_XATTRS) && superblock.xattr_id_table_start.is_some(),
        "attributes exist, but the flags state that there are none",
    );
}

/// The attributes read so far.
#[derive(Default)]
struct SeenXattrs {
    /// The sets, by position and number of their attributes.
    sets: HashSet<(u64, u32)>,
    claims: Claims,
    /// The lengths of out-of-line values: many attributes may share one.
    values: HashMap<u64, usize>,
}

impl SeenXattrs {
    /// Reads a set of attributes, names and values. Reads shared parts only once.
    fn check(&mut self, squashfs: &Squashfs, set: &XattrId, report: &mut Report<'_>) -> Result<()> {
        if !self.sets.insert((set.xattr, set.count)) {
            return Ok(());
        }
        let place = Place::at(squashfs.xattr_attributes().map_or(0, |table| table.start));
        let mut names = HashSet::new();
        let (mut bytes, mut visible) = (Some(0_u64), XattrBytes::at(place));
        let mut attributes = squashfs.xattr_list(set)?;
        let mut claim = self.claims.begin(attributes.position(), "attribute set overlaps another one", place);
        while let Some(attribute) = attributes.next()? {
            claim.advance(attributes.position())?;
            if report.is_cancelled() {
                return Ok(());
            }
            if XattrPrefix::from_kind(attribute.kind).is_none() {
                report.add(Finding::warning("attribute with an unknown prefix, which is not shown", place));
            }
            if attribute.name.is_empty() || attribute.name.contains(&0) {
                report.add(Finding::error("attribute name is empty or contains NUL", place));
            }
            let reference = attribute.value_reference()?;
            let known = reference.and_then(|reference| self.values.get(&reference).copied());
            let value_len = match known {
                Some(len) => len,
                None => attribute.value()?.len(),
            };
            if let Some(reference) = reference {
                self.values.insert(reference, value_len);
            }
            let name = visible.add_name(&attribute)?;
            // Readers skip the values of other attributes.
            visible.add_value(value_len.max(attribute.stored_len()))?;
            let name_len = name.map(|name| name.len().saturating_add(1));
            let len = name_len.map(|len| u64::try_from(len.saturating_add(value_len)).unwrap_or(u64::MAX));
            bytes = bytes.and_then(|bytes| bytes.checked_add(len?));
            let prefix = attribute.kind & format::XATTR_PREFIX_MASK;
            if !names.insert((prefix, attribute.name)) {
                report.add(Finding::error("duplicate attribute", place));
            }
        }
        if let Some(bytes) = bytes.filter(|bytes| *bytes != u64::from(set.size)) {
            let rule = format!("attributes take {bytes} bytes, but their set states {}", set.size);
            report.add(Finding::warning(rule, place));
        }
        Ok(())
    }
}
