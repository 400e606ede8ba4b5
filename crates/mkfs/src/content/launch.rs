//! Applies a launch profile to a tree: the order of files, and the ranges that the launch reads.

use floe_image::{ByteRange, Nid};

use crate::{
    profile::Profile,
    tree::{NodeId, OrderedNode, Tree},
};

/// The files that a launch reads, indexed in tree order.
pub(crate) struct Launch<'a> {
    pub(crate) profile: &'a Profile,
    /// The file of each range in the profile, if it exists.
    places: Vec<Option<usize>>,
}

impl<'a> Launch<'a> {
    /// Finds the files of a profile.
    pub(crate) fn new(profile: &'a Profile, tree: &Tree, order: &[OrderedNode]) -> Self {
        let places = tree.places(order);
        let place = |path: &[u8]| find(tree, path).map(|node| places[node.index()]);
        Self { profile, places: profile.ranges().iter().map(|range| place(&range.path)).collect() }
    }

    /// The rank of each file; the launch reads files of lower ranks earlier. A file that shares the content of an
    /// earlier one has its rank.
    pub(crate) fn ranks(&self, duplicate_of: &[Option<usize>]) -> Vec<usize> {
        let mut ranks = vec![usize::MAX; duplicate_of.len()];
        for (rank, place) in self.places.iter().enumerate() {
            let Some(place) = place else { continue };
            let stored = duplicate_of[*place].unwrap_or(*place);
            ranks[stored] = ranks[stored].min(rank);
        }
        ranks
    }

    /// The ranges of files in the image, for inodes with these nids.
    pub(crate) fn ranges(&self, nids: &[u64]) -> Vec<(Nid, ByteRange)> {
        let ranges = self.profile.ranges().iter().zip(&self.places);
        ranges.filter_map(|(range, place)| place.map(|place| (Nid(nids[place]), range.range))).collect()
    }

    /// The number of ranges that refer to files not in the image.
    pub(crate) fn missing(&self) -> u64 {
        self.places.iter().filter(|place| place.is_none()).count() as u64
    }
}

fn find(tree: &Tree, path: &[u8]) -> Option<NodeId> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.into_iter().try_fold(Tree::ROOT, |directory, name| tree.lookup(directory, name))
}
