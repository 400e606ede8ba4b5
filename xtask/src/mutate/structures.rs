//! The structures of an image.

use std::collections::BTreeMap;

/// The composition of a structure.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Consecutive named numbers: the name and size in bytes of each.
    Fields(&'static [(&'static str, usize)]),
    /// Numbers of this many bytes each.
    Words(usize),
}

/// A structure in an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Structure {
    /// Its kind: "inode", "dirent".
    pub(super) kind: &'static str,
    /// Its offset.
    pub(super) offset: usize,
    /// Its length in bytes; at least 1, and entirely within the image.
    pub(super) len: usize,
    /// Its composition.
    pub(super) shape: Shape,
}

/// The structures of an image by kind.
#[derive(Clone, Default, Debug)]
pub(super) struct Structures {
    kinds: BTreeMap<&'static str, Vec<Structure>>,
    image_len: usize,
    /// Numbers with which the image refers to its parts: nids, blocks, offsets.
    pub(super) references: Vec<u64>,
}

impl Structures {
    /// Creates an empty set for an image of this length.
    pub(super) fn new(image_len: usize) -> Self {
        Self { image_len, ..Self::default() }
    }

    /// Adds a structure with named fields, unless it exceeds the image.
    pub(super) fn add(&mut self, kind: &'static str, offset: u64, fields: &'static [(&'static str, usize)]) {
        let len = fields.iter().map(|(_, size)| size).sum();
        self.insert(kind, offset, len, Shape::Fields(fields));
    }

    /// Adds a run of numbers of `word` bytes each, as far as it is within the image.
    pub(super) fn add_words(&mut self, kind: &'static str, offset: u64, len: usize, word: usize) {
        let room = usize::try_from(offset).map_or(0, |offset| self.image_len.saturating_sub(offset));
        self.insert(kind, offset, len.min(room), Shape::Words(word));
    }

    fn insert(&mut self, kind: &'static str, offset: u64, len: usize, shape: Shape) {
        let Ok(offset) = usize::try_from(offset) else { return };
        if len > 0 && offset.checked_add(len).is_some_and(|end| end <= self.image_len) {
            self.kinds.entry(kind).or_default().push(Structure { kind, offset, len, shape });
        }
    }

    /// The kinds, each with all its structures.
    pub(super) fn kinds(&self) -> impl ExactSizeIterator<Item = (&'static str, &[Structure])> {
        self.kinds.iter().map(|(kind, structures)| (*kind, structures.as_slice()))
    }

    /// The structures of the kind with this index.
    pub(super) fn of_kind(&self, index: usize) -> &[Structure] {
        self.kinds.values().nth(index).map_or(&[], Vec::as_slice)
    }
}

impl Structure {
    /// The numbers in it: name if it has one, offset in the image, and size in bytes.
    pub(super) fn numbers(&self) -> Vec<(&'static str, usize, usize)> {
        match self.shape {
            Shape::Fields(fields) => {
                let mut offset = self.offset;
                let place = |&(name, size): &(&'static str, usize)| {
                    offset += size;
                    (name, offset - size, size)
                };
                fields.iter().map(place).collect()
            }
            Shape::Words(size) => {
                let count = self.len / size;
                (0..count).map(|index| ("", self.offset + index * size, size)).collect()
            }
        }
    }
}
