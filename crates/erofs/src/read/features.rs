//! The features of an image and their names (docs/format/erofs.md, Features).

use floe_image::{Error, Result};

use crate::format;

/// The features of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Features {
    compatible: u32,
    incompatible: u32,
}

impl Features {
    /// Parses the feature bits of the superblock.
    ///
    /// # Errors
    /// An incompatible bit is unknown; the error names it.
    pub(crate) fn new(compatible: u32, incompatible: u32) -> Result<Self> {
        match incompatible & !format::ALL_FEATURE_INCOMPAT {
            0 => Ok(Self { compatible, incompatible }),
            unknown => Err(Error::unsupported(format!("EROFS feature_incompat {}", bit_names(unknown)))),
        }
    }

    /// Whether all compatible bits of `bits` are set.
    pub(crate) fn has_compatible(self, bits: u32) -> bool {
        self.compatible & bits == bits
    }

    /// Whether all incompatible bits of `bits` are set.
    pub(crate) fn has(self, bits: u32) -> bool {
        self.incompatible & bits == bits
    }

    /// The names of the features. Unknown compatible bits appear as numbers.
    pub(crate) fn words(self) -> Vec<String> {
        let mut words = Vec::new();
        for (bits, names) in [(self.compatible, COMPATIBLE_NAMES), (self.incompatible, INCOMPATIBLE_NAMES)] {
            words.extend(names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| String::from(*name)));
        }
        let known = COMPATIBLE_NAMES.iter().fold(0, |all, (bit, _)| all | bit);
        if self.compatible & !known != 0 {
            words.push(format!("compatible {}", bit_names(self.compatible & !known)));
        }
        words
    }
}

const COMPATIBLE_NAMES: &[(u32, &str)] = &[
    (format::FEATURE_COMPAT_SB_CHKSUM, "sb_csum"),
    (format::FEATURE_COMPAT_MTIME, "mtime"),
    (format::FEATURE_COMPAT_XATTR_FILTER, "xattr_filter"),
    (format::FEATURE_COMPAT_SHARED_EA_IN_METABOX, "shared_ea_in_metabox"),
    (format::FEATURE_COMPAT_PLAIN_XATTR_PFX, "plain_xattr_pfx"),
    (format::FEATURE_COMPAT_ISHARE_XATTRS, "ishare_xattrs"),
];

const INCOMPATIBLE_NAMES: &[(u32, &str)] = &[
    (format::FEATURE_INCOMPAT_ZERO_PADDING, "0padding"),
    (format::FEATURE_INCOMPAT_COMPR_CFGS, "compr_cfgs/big_pcluster"),
    (format::FEATURE_INCOMPAT_CHUNKED_FILE, "chunked_file"),
    (format::FEATURE_INCOMPAT_DEVICE_TABLE, "device_table/compr_head2"),
    (format::FEATURE_INCOMPAT_ZTAILPACKING, "ztailpacking"),
    (format::FEATURE_INCOMPAT_FRAGMENTS, "fragments/dedupe"),
    (format::FEATURE_INCOMPAT_XATTR_PREFIXES, "xattr_prefixes"),
    (format::FEATURE_INCOMPAT_48BIT, "48bit"),
    (format::FEATURE_INCOMPAT_METABOX, "metabox"),
];

fn bit_names(bits: u32) -> String {
    let numbers = (0..u32::BITS).map(|number| 1u32 << number).filter(|bit| bits & bit != 0);
    numbers.map(|bit| format!("bit {bit:#x}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::Features;

    #[test]
    fn unknown_incompatible_bits_are_refused_by_number() {
        for (bits, expected) in [
            (0x1ff, None),
            (0x200, Some("not supported: EROFS feature_incompat bit 0x200")),
            (0x8000_0401, Some("not supported: EROFS feature_incompat bit 0x400, bit 0x80000000")),
        ] {
            let error = Features::new(0, bits).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), expected);
        }
    }

    #[test]
    fn words_name_each_bit() {
        let features = Features::new(0x8000_0003, 0x11).expect("the bits are known");
        assert_eq!(features.words(), ["sb_csum", "mtime", "0padding", "ztailpacking", "compatible bit 0x80000000"]);
    }
}
