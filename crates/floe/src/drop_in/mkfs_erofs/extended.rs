//! `-E` and `--zfeature-bits`: features by name and by number.

use floe_mkfs::{Fragments, InodeForm, Options};

/// What the features ask for besides what [`Options`] has.
#[derive(Default)]
pub(super) struct Extended {
    /// Short inodes are asked for, which have no times of their own.
    pub(super) ignores_times: bool,
    /// Which size the packed inode's pclusters should have.
    pub(super) packed_pcluster: Option<u32>,
}

/// The features of `--zfeature-bits`, from bit 0 on.
const BITS: [&str; 8] =
    ["legacy-compress", "ztailpacking", "fragments", "all-fragments", "dedupe", "fragdedupe", "48bit", "dot-omitted"];

impl Extended {
    /// Takes a list of features.
    pub(super) fn take(&mut self, list: &str, options: &mut Options) -> Result<(), String> {
        list.split(',').try_for_each(|feature| {
            let (name, value) = match feature.split_once('=') {
                Some((_, "")) => return Err(format!("the value of the extended option {feature} is missing")),
                Some((name, value)) => (name, Some(value)),
                None => (feature, None),
            };
            match name.strip_prefix('^') {
                Some(name) => self.set(name, false, value, options),
                None => self.set(name, true, value, options),
            }
        })
    }

    /// Takes the number of `--zfeature-bits`.
    pub(super) fn take_bits(&mut self, bits: u64, options: &mut Options) -> Result<(), String> {
        if bits >> BITS.len() != 0 {
            return Err(format!("unsupported zfeature bit {}", BITS.len()));
        }
        let asked = BITS.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 != 0);
        asked.map(|(_, name)| name).try_for_each(|name| self.set(name, true, None, options))
    }

    fn set(&mut self, name: &str, on: bool, value: Option<&str>, options: &mut Options) -> Result<(), String> {
        let takes_value = matches!(name, "fragments" | "all-fragments" | "fragdedupe");
        if value.is_some() && !takes_value {
            return Err(format!("the extended option {name} has no value"));
        }
        let fragments = |fragments| if on { fragments } else { Fragments::None };
        match name {
            "legacy-compress" => options.compact_index = !on,
            "ztailpacking" => options.inline_pclusters = on,
            "fragments" => options.fragments = fragments(Fragments::Tails),
            "all-fragments" => options.fragments = fragments(Fragments::All),
            "dedupe" => options.dedupe = on,
            // Equal fragments are always stored once.
            "fragdedupe" if on && matches!(value, None | Some("full" | "inode")) => {}
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
            // That is where they are.
            "plain-xattr-prefixes" => {}
            "dot-omitted" | "nosbcrc" | "fragdedupe" => {
                return Err(format!("the extended option {name} is not offered by floe"));
            }
            name => return Err(format!("unknown extended option {name}")),
        }
        if let (Some(value), true) = (value, name.ends_with("fragments")) {
            let size = value.parse().map_err(|_| format!("invalid pcluster size {value} of fragments"))?;
            self.packed_pcluster = Some(size);
        }
        Ok(())
    }
}
