//! Where the structures of an image are.

use std::collections::BTreeMap;

/// What a structure is made of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Named numbers in a row: the name of each and its size in bytes.
    Fields(&'static [(&'static str, usize)]),
    /// Numbers of this many bytes each.
    Words(usize),
}

/// A structure in the bytes of an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Structure {
    /// What it is: "inode", "dirent".
    pub(super) kind: &'static str,
    /// Its first byte.
    pub(super) offset: usize,
    /// How many bytes it takes; at least 1, and all of them are in the image.
    pub(super) len: usize,
    /// What it is made of.
    pub(super) shape: Shape,
}

/// Where the structures of an image are, by kind.
#[derive(Clone, Default, Debug)]
pub(super) struct Structures {
    kinds: BTreeMap<&'static str, Vec<Structure>>,
    image_len: usize,
    /// Numbers by which the image refers to its parts: nids, blocks, offsets.
    pub(super) references: Vec<u64>,
}

impl Structures {
    /// None yet, in an image of so many bytes.
    pub(super) fn new(image_len: usize) -> Self {
        Self { image_len, ..Self::default() }
    }

    /// Adds a structure with named fields, unless it is not in the image.
    pub(super) fn add(&mut self, kind: &'static str, offset: u64, fields: &'static [(&'static str, usize)]) {
        let len = fields.iter().map(|(_, size)| size).sum();
        self.insert(kind, offset, len, Shape::Fields(fields));
    }

    /// Adds a run of numbers of `word` bytes each, as far as it is in the image.
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

    /// The kinds that there are, each with all structures of it.
    pub(super) fn kinds(&self) -> impl ExactSizeIterator<Item = (&'static str, &[Structure])> {
        self.kinds.iter().map(|(kind, structures)| (*kind, structures.as_slice()))
    }

    /// The structures of the kind with this number, counted from 0 up to the number of kinds.
    pub(super) fn of_kind(&self, index: usize) -> &[Structure] {
        self.kinds.values().nth(index).map_or(&[], Vec::as_slice)
    }
}

impl Structure {
    /// The numbers in it: the name of each where it has one, its first byte in the image, and its size in bytes.
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
