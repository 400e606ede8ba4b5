//! Where the bytes of an image went, by the types of its files.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{
    content::extension,
    tree::{Body, OrderedNode, Tree},
};

/// The maximum number of types that a summary lists. The last one stands for all others.
const TYPES_MAX: usize = 20;

/// What the files of one type take in an image. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TypeUsage {
    /// The extension of their names, without version numbers; `None` for names without one, and for rare types together.
    pub extension: Option<String>,
    /// The number of files.
    pub files: u64,
    /// Their content.
    pub content_bytes: u64,
    /// What the image stores for it, apart from fragments.
    pub stored_bytes: u64,
    /// The part of the content that is in fragments, before their compression.
    pub packed_bytes: u64,
    /// The part of the content that is not stored, because it duplicates other data, or is in another image.
    pub shared_bytes: u64,
    /// The part of the content that is in holes.
    pub hole_bytes: u64,
}

/// What a file takes in an image, as [`TypeUsage`].
#[derive(Clone, Copy, Default)]
pub(super) struct FileUsage {
    pub(super) stored_bytes: u64,
    pub(super) packed_bytes: u64,
    pub(super) shared_bytes: u64,
    pub(super) hole_bytes: u64,
}

/// The blocks of each device in which data of files that were counted begins.
#[derive(Default)]
pub(super) struct SeenBlocks(BTreeMap<u16, Vec<u64>>);

impl SeenBlocks {
    /// Whether this block is asked for for the first time.
    pub(super) fn is_first(&mut self, device: u16, block: u64) -> bool {
        let words = self.0.entry(device).or_default();
        let (word, bit) = (usize::try_from(block / 64).unwrap_or(usize::MAX), 1 << (block % 64));
        if words.len() <= word {
            words.resize(word + 1, 0);
        }
        let is_first = words[word] & bit == 0;
        words[word] |= bit;
        is_first
    }
}

impl TypeUsage {
    /// The types of the files of a tree, the largest in the image first. `usage` is called with the index of each file in tree
    /// order.
    pub(super) fn of_tree(tree: &Tree, order: &[OrderedNode], mut usage: impl FnMut(usize) -> FileUsage) -> Vec<Self> {
        let mut types: BTreeMap<Option<&[u8]>, Self> = BTreeMap::new();
        let mut seen = vec![false; tree.len()];
        let places = tree.places(order);
        for directory in order.iter().filter(|ordered| matches!(tree.node(ordered.node).body, Body::Directory(_))) {
            for (name, node) in tree.entries(directory.node) {
                let Body::File(content) = &tree.node(node).body else { continue };
                if std::mem::replace(&mut seen[node.index()], true) {
                    continue;
                }
                let known = extension(name);
                let one = types.entry(Some(known).filter(|known| known.len() < name.len())).or_default();
                one.add(&Self { files: 1, content_bytes: content.size(), ..Self::default() });
                let FileUsage { stored_bytes, packed_bytes, shared_bytes, hole_bytes } = usage(places.of(node));
                one.add(&Self { stored_bytes, packed_bytes, shared_bytes, hole_bytes, ..Self::default() });
            }
        }
        let named = |(name, one): (Option<&[u8]>, Self)| Self {
            extension: name.map(|name| String::from_utf8_lossy(name).into_owned()),
            ..one
        };
        let mut types: Vec<Self> = types.into_iter().map(named).collect();
        types.sort_by_key(|one| Reverse((one.stored_bytes, one.packed_bytes, one.content_bytes)));
        if types.len() > TYPES_MAX {
            let mut others = Self::default();
            types.drain(TYPES_MAX - 1..).for_each(|one| others.add(&one));
            match types.iter_mut().find(|one| one.extension.is_none()) {
                Some(unnamed) => unnamed.add(&others),
                None => types.push(others),
            }
        }
        types
    }

    fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.content_bytes += other.content_bytes;
        self.stored_bytes += other.stored_bytes;
        self.packed_bytes += other.packed_bytes;
        self.shared_bytes += other.shared_bytes;
        self.hole_bytes += other.hole_bytes;
    }
}
