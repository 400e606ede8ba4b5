//! The file in an object's directory that describes the object.

use std::io::{self, Read, Write};

use crate::{
    Digest, OBJECT_BYTES_MAX, ObjectKey, VerityRoot, layout::ChunkLayout, trusted_directory::TrustedDirectory,
};

/// The file's name.
const FILE: &str = "about";

/// The maximum number of its bytes that are read.
const BYTES_MAX: u64 = 64 << 10;

/// The description of an object in its directory. The first line is the text of the object's key, whose digest is the
/// name of the directory; the second is the name for users.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct About {
    pub(crate) key: String,
    pub(crate) name: String,
    pub(crate) root: AboutRoot,
    pub(crate) layout: ChunkLayout,
}

/// The kind of verification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AboutRoot {
    Verity(VerityRoot),
    Table(Digest),
    Location,
}

impl About {
    /// The description for the directory of an object.
    pub(crate) fn of(key: &ObjectKey, name: &str) -> Option<Self> {
        Self::parse(&format!("{key}\n{}\n", name.escape_debug()), &key.id())
    }

    /// Reads the description of the object `id`; `None` if the file is torn or describes another object.
    pub(crate) fn read(directory: &TrustedDirectory, id: &Digest) -> Option<Self> {
        let mut text = String::new();
        directory.read_file(FILE).ok()?.take(BYTES_MAX).read_to_string(&mut text).ok()?;
        Self::parse(&text, id)
    }

    /// Writes the file, unless its content is unchanged. A crash leaves the old file, the new file, or one that does
    /// not parse.
    pub(crate) fn write(&self, directory: &TrustedDirectory, id: &Digest) -> io::Result<()> {
        if Self::read(directory, id).as_ref() == Some(self) {
            return Ok(());
        }
        let (new, mut file) = directory.new_file()?;
        file.write_all(format!("{}\n{}\n", self.key, self.name).as_bytes())?;
        directory.rename(&new, directory, FILE)
    }

    /// Parses the text of the file.
    pub(crate) fn parse(text: &str, id: &Digest) -> Option<Self> {
        let (key, rest) = text.split_once('\n')?;
        let name = rest.strip_suffix('\n')?;
        if Digest::of(key.as_bytes()) != *id || name.contains('\n') {
            return None;
        }
        let (subject, len) = key.strip_suffix(" bytes")?.rsplit_once(" of ")?;
        let object_len = len.parse().ok().filter(|len| *len <= OBJECT_BYTES_MAX)?;
        let (root, data_len) = if let Some(root) = subject.strip_prefix("dm-verity ") {
            let (hash, offset) = root.split_once(" at ")?;
            let root = VerityRoot { root_hash: hash.parse().ok()?, hash_offset: offset.parse().ok()? };
            (AboutRoot::Verity(root), root.hash_offset)
        } else if let Some(digest) = subject.strip_prefix("table ") {
            (AboutRoot::Table(digest.parse().ok()?), object_len)
        } else {
            (AboutRoot::Location, object_len)
        };
        let layout = ChunkLayout::new(data_len, object_len);
        Some(Self { key: key.to_owned(), name: name.to_owned(), root, layout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Location, Trust};

    #[test]
    fn keys_are_read_back() {
        let folder = tempfile::tempdir().expect("a directory");
        let directory = TrustedDirectory::create(folder.path(), "object").expect("ours");
        let location =
            |url: &str| Trust::Location(Location { url: url.to_owned(), etag: "\"a b\" of 7 bytes".to_owned() });
        for (trust, len, chunks) in [
            (Trust::Verity(VerityRoot { root_hash: Digest::of(b"r"), hash_offset: 1 << 20 }), (1 << 20) + 40_960, 6),
            (location("https://example.org/a of 3 bytes"), 1 << 20, 4),
            (location("https://example.org/a\nb"), 0, 0),
        ] {
            let key = ObjectKey { trust, len };
            let about = About::of(&key, "a name\nof two lines").expect("it parses");
            assert_eq!(about.layout.chunks(), chunks, "{key}");
            about.write(&directory, &key.id()).expect("it is written");
            assert_eq!(About::read(&directory, &key.id()), Some(about));
            assert_eq!(About::read(&directory, &Digest::of(b"other")), None);
        }
    }
}
