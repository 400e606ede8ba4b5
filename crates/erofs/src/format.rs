//! The on-disk structures: raw, little-endian, with their sizes checked at compile time.
//!
//! Names are those of the specification without their prefix. Nothing here checks values; the reader and the writer do.
//! Where the specification overlays several fields, the raw number is stored and methods interpret it.

mod compression;
mod inode;
mod launch_list;
mod superblock;

pub use compression::*;
pub use inode::*;
pub use launch_list::*;
pub use superblock::*;

/// A number or byte array inside a raw structure.
trait Field: Sized {
    /// Its size in bytes.
    const SIZE: usize;

    /// Reads the field from the front of `bytes` and advances.
    fn take(bytes: &mut &[u8]) -> Option<Self>;

    /// Writes the field to the front of `bytes` and advances.
    fn put(&self, bytes: &mut &mut [u8]);
}

macro_rules! field_integers {
    ($($integer:ty),*) => {$(
        impl Field for $integer {
            const SIZE: usize = size_of::<$integer>();

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                let (head, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(Self::from_le_bytes(*head))
            }

            fn put(&self, bytes: &mut &mut [u8]) {
                self.to_le_bytes().put(bytes);
            }
        }
    )*};
}
field_integers!(u16, u32, u64);

impl Field for u8 {
    const SIZE: usize = 1;

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first()?;
        *bytes = rest;
        Some(*head)
    }

    fn put(&self, bytes: &mut &mut [u8]) {
        [*self].put(bytes);
    }
}

impl<const N: usize> Field for [u8; N] {
    const SIZE: usize = N;

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(*head)
    }

    fn put(&self, bytes: &mut &mut [u8]) {
        if let Some((head, rest)) = std::mem::take(bytes).split_first_chunk_mut() {
            *head = *self;
            *bytes = rest;
        }
    }
}

/// Declares raw structures, and tests them: `name: size in bytes { fields in order }`.
macro_rules! raw_structs {
    ($($(#[$attribute:meta])* pub struct $name:ident: $size:literal {
        $($(#[$field_attribute:meta])* pub $field:ident: $kind:ty,)*
    })*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name {
            $($(#[$field_attribute])* pub $field: $kind,)*
        }

        impl $name {
            /// The size in the image, in bytes.
            pub const SIZE: usize = $size;

            /// The fields in order: name and size in bytes of each.
            pub const FIELDS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), <$kind as crate::format::Field>::SIZE),)*];

            /// Reads the structure from the front of `bytes`; `None` if `bytes` is too short.
            pub fn from_prefix(bytes: &[u8]) -> Option<Self> {
                let mut rest = bytes;
                Some(Self { $($field: crate::format::Field::take(&mut rest)?,)* })
            }

            /// The on-disk form of the structure.
            pub fn to_bytes(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                let mut rest = bytes.as_mut_slice();
                $(crate::format::Field::put(&self.$field, &mut rest);)*
                let _ = rest;
                bytes
            }
        }

        impl Default for $name {
            /// A structure of zero bytes.
            fn default() -> Self {
                $(let $field = <$kind as crate::format::Zero>::ZERO;)*
                Self { $($field,)* }
            }
        }

        const _: () = assert!(0 $(+ <$kind as crate::format::Field>::SIZE)* == $size);
    )*

        #[cfg(test)]
        #[test]
        fn raw_structures_survive_a_round_trip() {
            let bytes: Vec<u8> = (0..=255).collect();
            $(
                let raw = $name::from_prefix(&bytes).expect("there are enough bytes");
                assert_eq!(raw.to_bytes().as_slice(), &bytes[..$name::SIZE], stringify!($name));
                assert_eq!($name::from_prefix(&bytes[..$name::SIZE - 1]), None, stringify!($name));
                assert_eq!($name::default().to_bytes(), [0; $name::SIZE], stringify!($name));
            )*
        }
    };
}
use raw_structs;

/// The value of a field in a structure of zero bytes.
trait Zero {
    /// That value.
    const ZERO: Self;
}

macro_rules! zero_integers {
    ($($integer:ty),*) => {$(
        impl Zero for $integer {
            const ZERO: Self = 0;
        }
    )*};
}
zero_integers!(u8, u16, u32, u64);

impl<const N: usize> Zero for [u8; N] {
    const ZERO: Self = [0; N];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_at_the_offsets_of_the_specification() {
        let mut bytes = [0; 128];
        bytes[80..84].copy_from_slice(&FEATURE_INCOMPAT_METABOX.to_le_bytes());
        bytes[14] = 36;
        bytes[96] = 7;
        let raw = SuperBlock::from_prefix(&bytes).expect("there are enough bytes");
        assert_eq!((raw.feature_incompat, raw.rb, raw.packed_nid), (FEATURE_INCOMPAT_METABOX, 36, 7));
        let mut bytes = [0; 64];
        bytes[44] = 1;
        let raw = InodeExtended::from_prefix(&bytes).expect("there are enough bytes");
        assert_eq!(raw.i_nlink, 1);
    }
}
