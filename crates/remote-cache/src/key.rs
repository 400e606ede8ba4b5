//! Keys of cached objects, and the file in an object's directory that describes it.

use std::{
    fmt,
    io::{self, Read, Write},
};

use crate::{
    CHUNK_BYTES, Digest, OBJECT_BYTES_MAX, SECTION_BYTES, TableRoot, layout::ChunkLayout,
    trusted_directory::TrustedDirectory,
};

/// The name of the file that describes an object.
const ABOUT_FILE: &str = "about";

/// The maximum number of its bytes that are read.
const ABOUT_BYTES_MAX: u64 = 64 << 10;

/// The root of trust of an object. It is also part of the object's name in the cache: bytes that were verified against
/// one root never answer a reader that trusts another.
#[derive(Clone, Debug)]
pub enum Trust {
    /// A dm-verity hash tree at the end of the object.
    Verity(VerityRoot),
    /// A hash tree beside the object, with the SHA-256 of each 16 KiB. Readers see it behind the object's data.
    Tree(TreeRoot),
    /// A table with the SHA-256 of each 256 KiB.
    Table(TableRoot),
    /// Only the location. The bytes are not verified; a changed object is noticed by its ETag and its length.
    Location(Location),
}

/// The root of a dm-verity hash tree, as containerd records it beside a layer. Both values must come from a trusted
/// place, such as a manifest with a known digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VerityRoot {
    /// The digest of the topmost hash block.
    pub root_hash: Digest,
    /// The offset of the dm-verity superblock in the object, in bytes; the image ends there.
    pub hash_offset: u64,
}

/// The root of a hash tree beside an image. It must come from a trusted place, such as a manifest with a known digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TreeRoot {
    /// The digest of the topmost hash block; of the image itself, if that has a single chunk.
    pub root_hash: Digest,
    /// The length of the image in bytes.
    pub data_len: u64,
}

/// The location of an unverified object, and its version.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Location {
    /// Its URL, without credentials.
    pub url: String,
    /// Its strong ETag, or another text that changes whenever the object does.
    pub etag: String,
}

/// An object: its root of trust and its length.
#[derive(Clone, Debug)]
pub struct ObjectKey {
    /// The root of trust.
    pub trust: Trust,
    /// The length in bytes, including the hash tree behind or beside the object.
    pub len: u64,
}

impl ObjectKey {
    /// The name of the object's directory in the cache.
    pub fn id(&self) -> Digest {
        Digest::of(self.to_string().as_bytes())
    }

    /// Whether every byte is verified before a reader gets it.
    pub const fn is_verified(&self) -> bool {
        !matches!(self.trust, Trust::Location(_))
    }

    /// How many bytes of the object a reader may read: all bytes before the hash tree.
    pub fn data_len(&self) -> u64 {
        match &self.trust {
            Trust::Verity(root) => root.hash_offset.min(self.len),
            Trust::Tree(root) => root.data_len.min(self.len),
            Trust::Table(_) | Trust::Location(_) => self.len,
        }
    }

    /// The length of the object itself in bytes, without a hash tree beside it.
    pub const fn blob_len(&self) -> u64 {
        match &self.trust {
            Trust::Tree(root) if root.data_len < self.len => root.data_len,
            _ => self.len,
        }
    }

    /// The size of a data chunk in bytes, the unit that is fetched and verified: as many as one digest of a table covers, else
    /// [`CHUNK_BYTES`].
    pub const fn chunk_bytes(&self) -> u64 {
        match self.trust {
            Trust::Table(_) => SECTION_BYTES,
            Trust::Verity(_) | Trust::Tree(_) | Trust::Location(_) => CHUNK_BYTES,
        }
    }

    pub(crate) fn layout(&self) -> ChunkLayout {
        ChunkLayout::new(self.data_len(), self.len, self.chunk_bytes())
    }
}

impl fmt::Display for ObjectKey {
    /// `floe status` uses this form too.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.trust {
            Trust::Verity(VerityRoot { root_hash, hash_offset }) => {
                write!(formatter, "dm-verity sha256:{root_hash} at {hash_offset}")?;
            }
            Trust::Tree(TreeRoot { root_hash, data_len }) => {
                write!(formatter, "tree sha256:{root_hash} over {data_len}")?
            }
            Trust::Table(table) => write!(formatter, "table sha256:{}", table.digest())?,
            Trust::Location(Location { url, etag }) => {
                write!(formatter, "unverified {} etag {etag:?}", url.escape_debug())?;
            }
        }
        write!(formatter, " of {} bytes", self.len)
    }
}

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
    Tree(TreeRoot),
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
        directory.read_file(ABOUT_FILE).ok()?.take(ABOUT_BYTES_MAX).read_to_string(&mut text).ok()?;
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
        directory.rename(&new, directory, ABOUT_FILE)
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
        let (root, data_len, chunk_bytes) = if let Some(root) = subject.strip_prefix("dm-verity ") {
            let (hash, offset) = root.split_once(" at ")?;
            let root = VerityRoot { root_hash: hash.parse().ok()?, hash_offset: offset.parse().ok()? };
            (AboutRoot::Verity(root), root.hash_offset, CHUNK_BYTES)
        } else if let Some(root) = subject.strip_prefix("tree ") {
            let (hash, len) = root.split_once(" over ")?;
            let root = TreeRoot { root_hash: hash.parse().ok()?, data_len: len.parse().ok()? };
            (AboutRoot::Tree(root), root.data_len, CHUNK_BYTES)
        } else if let Some(digest) = subject.strip_prefix("table ") {
            (AboutRoot::Table(digest.parse().ok()?), object_len, SECTION_BYTES)
        } else {
            (AboutRoot::Location, object_len, CHUNK_BYTES)
        };
        let layout = ChunkLayout::new(data_len, object_len, chunk_bytes);
        Some(Self { key: key.to_owned(), name: name.to_owned(), root, layout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back() {
        let folder = tempfile::tempdir().expect("a directory");
        let directory = TrustedDirectory::create(folder.path(), "object").expect("ours");
        let location =
            |url: &str| Trust::Location(Location { url: url.to_owned(), etag: "\"a b\" of 7 bytes".to_owned() });
        for (trust, len, chunks) in [
            (Trust::Verity(VerityRoot { root_hash: Digest::of(b"r"), hash_offset: 1 << 20 }), (1 << 20) + 40_960, 66),
            (Trust::Tree(TreeRoot { root_hash: Digest::of(b"r"), data_len: 1 << 20 }), (1 << 20) + 4096, 65),
            (location("https://example.org/a of 3 bytes"), 1 << 20, 64),
            (location("https://example.org/a\nb"), 0, 0),
        ] {
            let key = ObjectKey { trust, len };
            let about = About::of(&key, "a name\nof two lines").expect("it parses");
            assert_eq!((about.layout.chunks(), about.layout), (chunks, key.layout()), "{key}");
            about.write(&directory, &key.id()).expect("it is written");
            assert_eq!(About::read(&directory, &key.id()), Some(about));
            assert_eq!(About::read(&directory, &Digest::of(b"other")), None);
        }
    }
}
