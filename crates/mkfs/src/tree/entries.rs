//! The entries of directories. The names of all directories are in one buffer, because an allocation for each would take more
//! memory than the name.

use super::NodeId;

/// The maximum number of entries of a page.
const PAGE_LEN: usize = 512;

/// The names of a tree, each after its length.
#[derive(Debug, Default)]
pub(crate) struct Names {
    bytes: Vec<u8>,
}

/// The place of a name in [`Names`].
#[derive(Clone, Copy, Debug)]
struct NamePlace(u32);

impl Names {
    /// Adds a name; `None` if the places of names are exhausted, or the name is too long.
    fn add(&mut self, name: &[u8]) -> Option<NamePlace> {
        let place = u32::try_from(self.bytes.len()).ok()?;
        self.bytes.extend(u16::try_from(name.len()).ok()?.to_le_bytes());
        self.bytes.extend_from_slice(name);
        Some(NamePlace(place))
    }

    fn of(&self, place: NamePlace) -> &[u8] {
        let Some((len, rest)) = self.bytes.get(place.0 as usize..).and_then(<[u8]>::split_first_chunk) else {
            return &[];
        };
        rest.get(..usize::from(u16::from_le_bytes(*len))).unwrap_or_default()
    }
}

/// The entries of a directory in the byte order of their names, in pages, so that a new one moves only few others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entries {
    /// No page is empty.
    pages: Vec<Vec<Entry>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    name: NamePlace,
    node: NodeId,
}

/// Where an entry is, or has to be: the index of its page, and its index in the page.
type Position = (usize, usize);

impl Entries {
    /// Sets the node of a name; `false` if there is no room for the name.
    #[must_use]
    pub(super) fn set(&mut self, names: &mut Names, name: &[u8], node: NodeId) -> bool {
        match self.position(names, name) {
            Ok((page, index)) => self.pages[page][index].node = node,
            Err(position) => {
                let Some(name) = names.add(name) else { return false };
                self.insert(position, Entry { name, node });
            }
        }
        true
    }

    fn insert(&mut self, (page, index): Position, entry: Entry) {
        let is_last = page + 1 == self.pages.len();
        match self.pages.get_mut(page) {
            None => self.pages.push(vec![entry]),
            Some(entries) if entries.len() < PAGE_LEN => entries.insert(index, entry),
            // Names often arrive in order; full pages then stay full.
            Some(_) if is_last && index == PAGE_LEN => self.pages.push(vec![entry]),
            Some(entries) => {
                let mut after = entries.split_off(PAGE_LEN / 2);
                match index.checked_sub(PAGE_LEN / 2) {
                    Some(index) => after.insert(index, entry),
                    None => entries.insert(index, entry),
                }
                self.pages.insert(page + 1, after);
            }
        }
    }

    pub(super) fn remove(&mut self, names: &Names, name: &[u8]) {
        if let Ok((page, index)) = self.position(names, name) {
            self.pages[page].remove(index);
            if self.pages[page].is_empty() {
                self.pages.remove(page);
            }
        }
    }

    /// Keeps only the entries of nodes for which `is_kept` holds.
    pub(super) fn retain(&mut self, is_kept: impl Fn(NodeId) -> bool) {
        self.pages.iter_mut().for_each(|page| page.retain(|entry| is_kept(entry.node)));
        self.pages.retain(|page| !page.is_empty());
    }

    pub(super) fn clear(&mut self) {
        self.pages.clear();
    }

    /// The node with this name.
    pub(super) fn node(&self, names: &Names, name: &[u8]) -> Option<NodeId> {
        self.position(names, name).ok().map(|(page, index)| self.pages[page][index].node)
    }

    /// Names and nodes, in the order of the names.
    pub(super) fn iter<'a>(&'a self, names: &'a Names) -> impl Iterator<Item = (&'a [u8], NodeId)> {
        self.pages.iter().flatten().map(|entry| (names.of(entry.name), entry.node))
    }

    /// Where the name is; the error is where it has to be.
    fn position(&self, names: &Names, name: &[u8]) -> Result<Position, Position> {
        let starts_before = |page: &Vec<Entry>| page.first().is_some_and(|first| names.of(first.name) <= name);
        let page = self.pages.partition_point(starts_before).saturating_sub(1);
        let entries = self.pages.get(page).map_or(&[][..], Vec::as_slice);
        match entries.binary_search_by(|entry| names.of(entry.name).cmp(name)) {
            Ok(index) => Ok((page, index)),
            Err(index) => Err((page, index)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn entries_are_those_of_a_sorted_map() {
        for step in [1, 7919, 99_991] {
            let (mut names, mut entries, mut expected) = (Names::default(), Entries::default(), BTreeMap::new());
            let name = |number: usize| format!("{:05}", number * step % 100_003).into_bytes();
            for number in 0..5000 {
                assert!(entries.set(&mut names, &name(number), NodeId::new(number)));
                expected.insert(name(number), NodeId::new(number));
                if number % 3 == 0 {
                    entries.remove(&names, &name(number / 2));
                    expected.remove(&name(number / 2));
                }
                if number % 5 == 0 {
                    assert!(entries.set(&mut names, &name(number / 3), NodeId::new(number)));
                    expected.insert(name(number / 3), NodeId::new(number));
                }
            }
            let is_kept = |node: NodeId| !node.index().is_multiple_of(17);
            entries.retain(is_kept);
            expected.retain(|_, node| is_kept(*node));
            let found: Vec<(Vec<u8>, NodeId)> =
                entries.iter(&names).map(|(name, node)| (name.to_vec(), node)).collect();
            assert_eq!(found, expected.clone().into_iter().collect::<Vec<_>>());
            for number in 0..5000 {
                assert_eq!(entries.node(&names, &name(number)), expected.get(&name(number)).copied());
            }
        }
    }
}
