//! A digest table that is identified by its digest and fetched on demand.

use std::{
    fmt, io,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use crate::{Digest, DigestTable};

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
        let load = self.inner.load.lock().unwrap_or_else(PoisonError::into_inner);
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
