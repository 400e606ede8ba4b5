//! The digest table that is published beside an image: one SHA-256 for each 256 KiB.

use std::{
    fmt,
    io::{self, Read},
    sync::{Arc, OnceLock},
};

use floe_sync::Mutex;

use crate::{DIGEST_BYTES, Digest};

/// The maximum size of an object: 4 TiB. It bounds the cost of a false length from a server.
pub const OBJECT_BYTES_MAX: u64 = 1 << 42;

/// The magic number of a table.
const MAGIC: [u8; 8] = *b"FLOETBL1";

/// The log2 of the number of object bytes that one digest covers: 256 KiB.
const PIECE_BYTES_LOG2: u32 = 18;

/// The number of object bytes that one digest covers; the last piece of the object may be shorter.
pub const PIECE_BYTES: u64 = 1 << PIECE_BYTES_LOG2;

/// The size of the header in bytes: the magic number, the size of pieces, four zero bytes, the length of the object.
const HEADER_BYTES: usize = 24;

/// The digest of each piece of an object. All integers are little-endian:
///
/// | bytes | content |
/// | --- | --- |
/// | 8 | `FLOETBL1` |
/// | 4 | size of pieces as a power of two: 18 |
/// | 4 | zero |
/// | 8 | length of the object in bytes |
/// | 32 for each piece | the SHA-256 of the piece |
#[derive(Clone, PartialEq, Eq)]
pub struct DigestTable {
    digest: Digest,
    object_len: u64,
    pieces: Vec<Digest>,
}

/// Why a table is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadTable {
    /// The violated rule.
    pub rule: &'static str,
}

impl fmt::Display for BadTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "not a usable digest table: {}", self.rule)
    }
}

impl std::error::Error for BadTable {}

impl DigestTable {
    /// The media type of a table in a registry.
    pub const MEDIA_TYPE: &str = "application/vnd.floe.digest-table.v1";

    /// The size of the table for an object of `object_len` bytes. A fetcher refuses longer tables.
    pub const fn bytes_for(object_len: u64) -> u64 {
        HEADER_BYTES as u64 + object_len.div_ceil(PIECE_BYTES) * DIGEST_BYTES as u64
    }

    /// Parses a table with an expected digest.
    ///
    /// # Errors
    /// The violated rule.
    pub fn parse(bytes: &[u8], digest: &Digest) -> Result<Self, BadTable> {
        let bad = |rule| Err(BadTable { rule });
        if Digest::of(bytes) != *digest {
            return bad("its digest is not the expected one");
        }
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return bad("it ends within its header");
        };
        let (magic, header) = header.split_at(8);
        let (piece_bytes_log2, header) = header.split_at(4);
        let (zero, len) = header.split_at(4);
        if magic != MAGIC {
            return bad("it does not begin with FLOETBL1");
        }
        if piece_bytes_log2 != PIECE_BYTES_LOG2.to_le_bytes() || zero != [0; 4] {
            return bad("its pieces are not of 256 KiB");
        }
        let object_len = len.try_into().map_or(u64::MAX, u64::from_le_bytes);
        if object_len > OBJECT_BYTES_MAX {
            return bad("its object is longer than 4 TiB");
        }
        let (pieces, tail) = rest.as_chunks::<DIGEST_BYTES>();
        if !tail.is_empty() || pieces.len() as u64 != object_len.div_ceil(PIECE_BYTES) {
            return bad("it does not have one digest for each piece");
        }
        Ok(Self { digest: *digest, object_len, pieces: pieces.iter().copied().map(Digest).collect() })
    }

    /// Parses the table of an object of `object_len` bytes.
    ///
    /// # Errors
    /// The violated rule.
    pub fn parse_for(bytes: &[u8], digest: &Digest, object_len: u64) -> Result<Self, BadTable> {
        let table = Self::parse(bytes, digest)?;
        let is_for_object = table.object_len == object_len;
        is_for_object.then_some(table).ok_or(BadTable { rule: "its object has another length" })
    }

    /// Computes the table of an object by reading all of it.
    ///
    /// # Errors
    /// The object cannot be read, or is longer than 4 TiB.
    pub fn of(object: &mut impl Read) -> io::Result<Self> {
        let mut pieces = Vec::new();
        let mut object_len = 0;
        let mut piece = Vec::new();
        loop {
            piece.clear();
            object.by_ref().take(PIECE_BYTES).read_to_end(&mut piece)?;
            if piece.is_empty() {
                break;
            }
            object_len += piece.len() as u64;
            if object_len > OBJECT_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 4 TiB"));
            }
            pieces.push(Digest::of(&piece));
        }
        let mut table = Self { digest: Digest([0; DIGEST_BYTES]), object_len, pieces };
        table.digest = Digest::of(&table.to_bytes());
        Ok(table)
    }

    /// The published form, which [`DigestTable::parse`] parses.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.pieces.len() * DIGEST_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&PIECE_BYTES_LOG2.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.object_len.to_le_bytes());
        bytes.extend(self.pieces.iter().flat_map(|piece| piece.0));
        bytes
    }

    /// The digest of the table itself, by which it is pinned.
    pub const fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The length of the object in bytes.
    pub const fn object_len(&self) -> u64 {
        self.object_len
    }

    /// The digest of the piece with this index.
    pub fn piece(&self, index: u64) -> Option<&Digest> {
        self.pieces.get(usize::try_from(index).ok()?)
    }
}

impl fmt::Debug for DigestTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DigestTable({:?} of {} bytes)", self.digest, self.object_len)
    }
}

/// Fetches a table with the digest, for an object of the right length.
type Load = Box<dyn Fn() -> io::Result<DigestTable> + Send + Sync>;

/// A digest table that is identified by its digest. It is fetched when the first bytes must be verified, in parallel with these
/// bytes. Clones share it.
#[derive(Clone)]
pub struct TableRoot {
    inner: Arc<Inner>,
}

struct Inner {
    digest: Digest,
    table: OnceLock<DigestTable>,
    /// Locked while the table is fetched, so that it is fetched only once.
    load: Mutex<Load>,
}

impl TableRoot {
    /// The table with this digest, which `load` fetches. If that fails, one read fails, and the next one tries again.
    pub fn new(digest: Digest, load: impl Fn() -> io::Result<DigestTable> + Send + Sync + 'static) -> Self {
        Self { inner: Arc::new(Inner { digest, table: OnceLock::new(), load: Mutex::new(Box::new(load)) }) }
    }

    /// The digest of the table.
    pub fn digest(&self) -> &Digest {
        &self.inner.digest
    }

    /// The table, if it was fetched.
    pub fn known(&self) -> Option<&DigestTable> {
        self.inner.table.get()
    }

    /// Returns the table, and fetches it if necessary.
    ///
    /// # Errors
    /// The table cannot be fetched, or has another digest.
    pub fn table(&self) -> io::Result<&DigestTable> {
        if let Some(table) = self.known() {
            return Ok(table);
        }
        let load = self.inner.load.lock();
        if let Some(table) = self.known() {
            return Ok(table);
        }
        let table = load()?;
        if table.digest() != self.digest() {
            let message =
                format!("the digest table sha256:{} came instead of sha256:{}", table.digest(), self.digest());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(self.inner.table.get_or_init(|| table))
    }
}

impl From<DigestTable> for TableRoot {
    fn from(table: DigestTable) -> Self {
        let root = Self::new(*table.digest(), || Err(io::ErrorKind::NotFound.into()));
        let _ = root.inner.table.set(table);
        root
    }
}

impl fmt::Debug for TableRoot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TableRoot({})", self.digest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_as_they_were_written() {
        for len in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES + 77] {
            let object: Vec<u8> = (0..len).map(|index| ((index * 7) >> 3) as u8).collect();
            let table = DigestTable::of(&mut &*object).expect("it is read");
            let bytes = table.to_bytes();
            assert_eq!(bytes.len() as u64, DigestTable::bytes_for(len));
            assert_eq!(DigestTable::parse(&bytes, table.digest()), Ok(table.clone()), "{len}");
            for (index, piece) in object.chunks(PIECE_BYTES as usize).enumerate() {
                assert_eq!(table.piece(index as u64), Some(&Digest::of(piece)));
            }
            assert_eq!((table.piece(len.div_ceil(PIECE_BYTES)), table.object_len()), (None, len));
        }
    }

    #[test]
    fn wrong_tables_are_refused() {
        let sound = DigestTable::of(&mut &*vec![7; 600_000]).expect("it is read").to_bytes();
        let with = |offset: usize, byte: u8| {
            let mut bytes = sound.clone();
            bytes[offset] = byte;
            bytes
        };
        for (bytes, rule) in [
            (sound[..23].to_vec(), "it ends within its header"),
            (Vec::new(), "it ends within its header"),
            (with(0, b'f'), "it does not begin with FLOETBL1"),
            (with(8, 12), "its pieces are not of 256 KiB"),
            (with(15, 1), "its pieces are not of 256 KiB"),
            (with(23, 0x80), "its object is longer than 4 TiB"),
            (with(18, 2 << 4), "it does not have one digest for each piece"),
            (sound[..sound.len() - 1].to_vec(), "it does not have one digest for each piece"),
            ([&sound[..], &[0; 32]].concat(), "it does not have one digest for each piece"),
        ] {
            assert_eq!(DigestTable::parse(&bytes, &Digest::of(&bytes)), Err(BadTable { rule }));
        }
        assert_eq!(
            DigestTable::parse(&with(30, 1), &Digest::of(&sound)),
            Err(BadTable { rule: "its digest is not the expected one" })
        );
    }
}
