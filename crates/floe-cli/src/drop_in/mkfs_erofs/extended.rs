//! `-E` and `--zfeature-bits`: features by name and by bit.

use floe_mkfs::{Fragments, InodeForm, Options};

use super::{
    Wrong,
    option_table::{FEATURES, Support},
    sized,
};

/// Requests of features that [`Options`] does not hold.
#[derive(Default)]
pub(super) struct Extended {
    /// Compact inodes are requested, which have no times of their own.
    pub(super) ignores_times: bool,
    /// The pcluster size of the packed inode.
    pub(super) packed_pcluster: Option<u32>,
}

/// How many of [`FEATURES`] have a bit in `--zfeature-bits`, from bit 0 on.
const BIT_COUNT: usize = 8;

impl Extended {
    /// Parses a list of features.
    pub(super) fn take(&mut self, list: &str, options: &mut Options) -> Result<(), Wrong> {
        list.split(',').try_for_each(|feature| {
            let (name, value) = match feature.split_once('=') {
                Some((_, "")) => {
                    return Err(Wrong::Call(format!("the value of the extended option {feature} is missing")));
                }
                Some((name, value)) => (name, Some(value)),
                None => (feature, None),
            };
            match name.strip_prefix('^') {
                Some(name) => self.set(name, false, value, options),
                None => self.set(name, true, value, options),
            }
        })
    }

    /// Parses the number of `--zfeature-bits`.
    pub(super) fn take_bits(&mut self, bits: u64, options: &mut Options) -> Result<(), Wrong> {
        if bits >> BIT_COUNT != 0 {
            return Err(Wrong::Call(format!("unsupported zfeature bit {BIT_COUNT}")));
        }
        let asked = FEATURES.iter().take(BIT_COUNT).enumerate().filter(|(bit, _)| bits >> bit & 1 != 0);
        asked.map(|(_, row)| row.name).try_for_each(|name| self.set(name, true, None, options))
    }

    fn set(&mut self, name: &str, on: bool, value: Option<&str>, options: &mut Options) -> Result<(), Wrong> {
        let row = FEATURES.iter().find(|row| row.name == name);
        let row = row.ok_or_else(|| format!("unknown extended option {name}"))?;
        if value.is_some() && !row.has_value {
            return Err(Wrong::Call(format!("the extended option {name} has no value")));
        }
        if let (Support::Refused(why, _), true) = (row.support, on) {
            return Err(Wrong::Refused(format!("the extended option {name} is not offered by floe: {why}")));
        }
        let fragments = |fragments| if on { fragments } else { Fragments::None };
        match name {
            "legacy-compress" => options.compact_index = !on,
            "ztailpacking" => options.inline_pclusters = on,
            "fragments" => options.fragments = fragments(Fragments::Tails),
            "all-fragments" => options.fragments = fragments(Fragments::All),
            "dedupe" => options.dedupe = on,
            "nosbcrc" => options.layout.checksum = !on,
            "48bit" => options.wide = on,
            "force-inode-compact" => {
                (options.inode_form, self.ignores_times) = (InodeForm::Smallest, true);
            }
            "force-inode-extended" => options.inode_form = InodeForm::Extended,
            "inline_data" => options.inline_data = on,
            "noinline_data" => options.inline_data = false,
            "force-inode-blockmap" => options.chunk_indexes = false,
            "force-chunk-indexes" => options.chunk_indexes = true,
            "xattr-name-filter" => options.xattrs.filter = on,
            // Features without effect.
            _ => {}
        }
        if let (Some(value), true) = (value, name.ends_with("fragments")) {
            let size = sized(value).ok_or_else(|| format!("invalid pcluster size {value} of fragments"))?;
            self.packed_pcluster = Some(size);
        }
        Ok(())
    }
}
