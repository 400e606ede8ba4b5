//! The next parts of directories, listed before the kernel asks for them.

use std::collections::VecDeque;

use floe_image::Nid;
use floe_sync::{Mutex, MutexGuard};

use crate::inodes::{directory::Listed, listings::Allowance};

/// The number of parts that wait for their requests. Later ones replace the oldest.
const PARTS_MAX: usize = 16;

/// The size in bytes of the largest reply that is made in advance.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// Parts of directories for requests that are likely to follow.
///
/// A reply to READDIRPLUS has room for about 200 names in the buffer that `find` and `ls` use, so a long directory takes
/// many requests. While the program uses the names of a reply, the session thread that sent it lists the next ones.
#[derive(Default)]
pub(crate) struct NextParts {
    parts: Mutex<VecDeque<ListedPart>>,
}

/// A part that was listed in advance.
struct ListedPart {
    part: ListingPart,
    allowed: Allowance,
    listed: Listed,
}

/// A part of a directory that a thread lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ListingPart {
    pub(crate) directory: Nid,
    /// The thread that lists it.
    pub(crate) lister: u32,
    /// The offset of its first entry, as in READDIRPLUS.
    pub(crate) offset: u64,
    /// The maximum size of the reply in bytes.
    pub(crate) len_max: usize,
}

impl ListingPart {
    /// The part that follows `listed`, if it is to be listed in advance: there may be more entries, and files get no
    /// attributes, which would take the thread a read of each inode.
    pub(crate) fn after(self, listed: &Listed) -> Option<Self> {
        let offset = listed.next.filter(|_| self.len_max <= REPLY_BYTES_MAX && listed.left.is_spent())?;
        Some(Self { offset, ..self })
    }
}

impl NextParts {
    /// Takes a part, if it was listed in advance, and the allowance of the listing.
    pub(crate) fn take(&self, part: ListingPart) -> Option<(Allowance, Listed)> {
        let mut parts = self.lock();
        let index = parts.iter().position(|next| next.part == part)?;
        parts.remove(index).map(|next| (next.allowed, next.listed))
    }

    /// Keeps a part, listed with attributes as far as `allowed`, for its request.
    pub(crate) fn keep(&self, part: ListingPart, allowed: Allowance, listed: Listed) {
        let mut parts = self.lock();
        if parts.len() >= PARTS_MAX {
            parts.pop_front();
        }
        parts.push_back(ListedPart { part, allowed, listed });
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ListedPart>> {
        self.parts.lock()
    }
}

#[cfg(test)]
mod tests {
    use floe_fuse_wire::DirectoryEntries;

    use super::*;

    const FIRST: ListingPart = ListingPart { directory: Nid(36), lister: 7, offset: 0, len_max: 4096 };

    fn listed(next: Option<u64>, left: Allowance) -> Listed {
        Listed { entries: DirectoryEntries::new(0), files: Vec::new(), left, next }
    }

    #[test]
    fn names_alone_are_listed_in_advance() {
        let after = |part: ListingPart, next, left| part.after(&listed(next, left)).map(|part| part.offset);
        assert_eq!(after(FIRST, Some(12), Allowance::NONE), Some(12));
        assert_eq!(after(FIRST, None, Allowance::NONE), None, "the directory has ended");
        assert_eq!(after(FIRST, Some(12), Allowance::default()), None, "files have attributes");
        assert_eq!(after(ListingPart { len_max: REPLY_BYTES_MAX + 1, ..FIRST }, Some(12), Allowance::NONE), None);
    }

    #[test]
    fn a_part_is_taken_once_by_its_lister() {
        let parts = NextParts::default();
        parts.keep(FIRST, Allowance::NONE, listed(Some(12), Allowance::NONE));
        for other in [
            ListingPart { lister: 8, ..FIRST },
            ListingPart { directory: Nid(1), ..FIRST },
            ListingPart { offset: 12, ..FIRST },
            ListingPart { len_max: 8192, ..FIRST },
        ] {
            assert!(parts.take(other).is_none(), "{other:?}");
        }
        assert_eq!(parts.take(FIRST).and_then(|(_, listed)| listed.next), Some(12));
        assert!(parts.take(FIRST).is_none());
    }

    #[test]
    fn old_parts_are_replaced() {
        let parts = NextParts::default();
        for offset in 0..=PARTS_MAX as u64 {
            parts.keep(ListingPart { offset, ..FIRST }, Allowance::NONE, listed(None, Allowance::NONE));
        }
        assert!(parts.take(FIRST).is_none());
        assert!((1..=PARTS_MAX as u64).all(|offset| parts.take(ListingPart { offset, ..FIRST }).is_some()));
    }
}
