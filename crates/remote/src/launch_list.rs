//! The ranges of an image that a launch reads, in a file beside the image on a web server or in an object store.

use floe_image::ByteRange;
use floe_remote_cache::CachedSource;

use crate::{
    RemoteObject,
    launch_bundle::{groups_of, runs_in, text_of},
};

/// The first line of a list, before the length of the image.
const HEADER: &str = "floe-launch 1 ";

/// The maximum size of a list in bytes.
pub(crate) const LIST_BYTES_MAX: u64 = 1 << 20;

/// The maximum number of bytes that a list can request.
const LISTED_BYTES_MAX: u64 = 256 << 20;

/// The ranges of an image that a launch reads, in the order of their use. Mounts of the image request them at once. A wrong list
/// costs time, and nothing else: the bytes come from the image.
///
/// A list is a text of two lines: `floe-launch 1 LENGTH` with the length of the image in bytes, and the blocks of 4 KiB, as in
/// `0+4,708`: the first block of each run, and the number of blocks if it has several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaunchList {
    image_len: u64,
    ranges: Vec<ByteRange>,
}

impl LaunchList {
    /// The suffix of a list's name, after the name of its image.
    pub const SUFFIX: &str = ".launch";

    /// The list of these ranges of an image of `image_len` bytes.
    pub fn of(ranges: &[ByteRange], image_len: u64) -> Self {
        Self { image_len, ranges: groups_of(&[ranges.to_vec()], image_len).concat() }
    }

    /// The text, which [`LaunchList::parse`] parses.
    pub fn to_text(&self) -> String {
        format!("{HEADER}{}\n{}\n", self.image_len, text_of(std::slice::from_ref(&self.ranges)))
    }

    /// Parses the list of an image of `image_len` bytes; `None` if it is invalid or of another image.
    pub fn parse(text: &str, image_len: u64) -> Option<Self> {
        let (header, rest) = text.split_once('\n')?;
        let is_of_image = header.strip_prefix(HEADER)?.parse() == Ok(image_len);
        let (runs, _, len) = runs_in(rest.trim_end(), image_len).filter(|_| is_of_image)?;
        let ranges = runs.iter().map(|run| run.image).collect();
        (len <= LISTED_BYTES_MAX).then_some(Self { image_len, ranges })
    }

    /// Requests the ranges of the list beside `object` from `image`, if there is one. Waits for the list.
    pub(crate) fn follow(object: &RemoteObject, image: &CachedSource) {
        let list = object.beside(Self::SUFFIX, LIST_BYTES_MAX);
        let list = list.and_then(|bytes| Self::parse(str::from_utf8(&bytes).ok()?, object.blob_len()));
        for range in list.into_iter().flat_map(|list| list.ranges) {
            floe_image::ImageSource::will_need(image, range.offset(), range.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_back_and_invalid_ones_are_none() {
        let len = 100 * 4096 + 5;
        let ranges = [(4096 * 9, 5000), (0, 1), (len - 1, 1), (4096 * 9, 1)].map(|(at, len)| ByteRange::new(at, len));
        let list = LaunchList::of(&ranges, len);
        assert_eq!(list.to_text(), format!("floe-launch 1 {len}\n0,9+2,100\n"));
        assert_eq!(LaunchList::parse(&list.to_text(), len), Some(list.clone()));
        for text in [
            "",
            "floe-launch 1 409605",
            "floe-launch 1 409604\n0\n",
            "floe-launch 2 409605\n0\n",
            "floe-launch 1 409605\n101\n",
            "floe-launch 1 409605\n0+x\n",
            "floe-launch 1 409605\n0,0\n",
        ] {
            assert_eq!(LaunchList::parse(text, len), None, "{text}");
        }
    }
}
