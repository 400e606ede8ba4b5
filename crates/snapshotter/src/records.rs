//! The records of all snapshots, in memory and on disk: one file for each, so that damage costs one snapshot.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use floe_image::ShownName;

use crate::{
    error::{Result, SnapshotError},
    record::Record,
};

/// The maximum size of a record, in bytes.
const RECORD_BYTES_MAX: u64 = 8 << 20;

/// The records of all snapshots.
pub(crate) struct Records {
    directory: PathBuf,
    by_name: BTreeMap<String, Record>,
    next_id: u64,
}

impl Records {
    /// Reads the records in a directory, which is created. Also returns a message for each that cannot be used; such a file gets
    /// another name.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub(crate) fn open(directory: &Path, used_ids: &BTreeSet<u64>) -> Result<(Self, Vec<String>)> {
        let failed = SnapshotError::file(directory);
        fs::create_dir_all(directory).map_err(&failed)?;
        let (mut by_name, mut messages) = (BTreeMap::new(), Vec::new());
        let mut next_id = used_ids.last().map_or(1, |last| last + 1);
        for entry in fs::read_dir(directory).map_err(&failed)? {
            let path = entry.map_err(&failed)?.path();
            let Some(id) = path.file_name().and_then(|name| name.to_str()?.parse::<u64>().ok()) else { continue };
            next_id = next_id.max(id.saturating_add(1));
            let problem = match read(&path) {
                Ok(record) if record.id != id => "it belongs to another snapshot".to_owned(),
                Ok(record) if by_name.contains_key(&record.name) => {
                    format!("{} exists twice", record.name.escape_debug())
                }
                Ok(record) => {
                    next_id = next_id.max(record.converted.unwrap_or(0).saturating_add(1));
                    by_name.insert(record.name.clone(), record);
                    continue;
                }
                Err(problem) => problem,
            };
            messages.push(format!("{}: {problem}; the snapshot is lost", path.shown()));
            // The file stays for an examination. Its directory is removed with the others that have no record.
            let _ = fs::rename(&path, path.with_extension("damaged"));
        }
        Ok((Self { directory: directory.to_owned(), by_name, next_id }, messages))
    }

    /// The number of the next snapshot.
    pub(crate) fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// The snapshot with this name.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn find(&self, name: &str) -> Result<&Record> {
        self.by_name.get(name).ok_or_else(|| SnapshotError::NotFound(name.to_owned()))
    }

    /// Refuses a name that exists.
    ///
    /// # Errors
    /// It exists.
    pub(crate) fn check_new(&self, name: &str) -> Result<()> {
        match self.by_name.contains_key(name) {
            true => Err(SnapshotError::AlreadyExists(name.to_owned())),
            false => Ok(()),
        }
    }

    /// The committed snapshot with this name, as a parent.
    ///
    /// # Errors
    /// There is none, or it is not committed.
    pub(crate) fn parent(&self, name: &str) -> Result<&Record> {
        let parent = self.find(name)?;
        match parent.is_committed() {
            true => Ok(parent),
            false => Err(SnapshotError::InvalidArgument(format!("the parent {name} is not committed"))),
        }
    }

    /// A snapshot's parents, the nearest first.
    ///
    /// # Errors
    /// One is missing.
    pub(crate) fn parents(&self, record: &Record) -> Result<Vec<Record>> {
        let mut parents = Vec::new();
        let mut next = record.parent.clone();
        while let Some(name) = next {
            let parent = self.parent(&name)?;
            // Records of a sound store form no circle; those of another one may.
            if parents.len() > self.by_name.len() {
                return Err(SnapshotError::Failed(format!("the parents of {} form a circle", record.name)));
            }
            next = parent.parent.clone();
            parents.push(parent.clone());
        }
        Ok(parents)
    }

    /// The parents that a new snapshot with this name and this parent will have, the nearest first.
    ///
    /// # Errors
    /// The name exists, or a parent is missing or not committed.
    pub(crate) fn new_parents(&self, name: &str, parent: &str) -> Result<Vec<Record>> {
        self.check_new(name)?;
        if parent.is_empty() {
            return Ok(Vec::new());
        }
        let parent = self.parent(parent)?;
        Ok([vec![parent.clone()], self.parents(parent)?].concat())
    }

    /// The names of the children of a snapshot.
    pub(crate) fn children(&self, name: &str) -> impl Iterator<Item = &str> {
        let is_child = move |record: &&Record| record.parent.as_deref() == Some(name);
        self.by_name.values().filter(is_child).map(|record| record.name.as_str())
    }

    /// All snapshots.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Record> {
        self.by_name.values()
    }

    /// Stores a record durably, under a new name if `old_name` is another.
    ///
    /// # Errors
    /// It cannot be written. The old one stays.
    pub(crate) fn store(&mut self, old_name: &str, record: Record) -> Result<()> {
        let path = self.path(record.id);
        let failed = SnapshotError::file(&path);
        let bytes = record.to_bytes().map_err(|error| failed(error.into()))?;
        let mut file = tempfile::NamedTempFile::new_in(&self.directory).map_err(&failed)?;
        file.write_all(&bytes).and_then(|()| file.as_file().sync_all()).map_err(&failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        self.sync().map_err(&failed)?;
        self.by_name.remove(old_name);
        self.by_name.insert(record.name.clone(), record);
        Ok(())
    }

    /// Removes a record durably.
    ///
    /// # Errors
    /// There is none, or it cannot be removed.
    pub(crate) fn remove(&mut self, name: &str) -> Result<Record> {
        let path = self.path(self.find(name)?.id);
        let removed = fs::remove_file(&path).and_then(|()| self.sync());
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(SnapshotError::file(&path)(error)),
            _ => {}
        }
        self.by_name.remove(name).ok_or_else(|| SnapshotError::NotFound(name.to_owned()))
    }

    fn path(&self, id: u64) -> PathBuf {
        self.directory.join(id.to_string())
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }
}

fn read(path: &Path) -> std::result::Result<Record, String> {
    let len = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if len > RECORD_BYTES_MAX {
        return Err("it is too long".to_owned());
    }
    Record::parse(&fs::read(path).map_err(|error| error.to_string())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn a_damaged_record_costs_one_snapshot() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = || Records::open(folder.path(), &BTreeSet::from([3])).expect("opened");
        let (mut records, messages) = open();
        assert_eq!(messages, Vec::<String>::new());
        assert_eq!(records.take_id(), 4);
        for (id, name, parent) in [(4, "base", None), (5, "middle", Some("base")), (6, "top", Some("middle"))] {
            records.store("", record(id, name, parent)).expect("stored");
        }
        records.store("top", record(6, "renamed", Some("middle"))).expect("stored");
        fs::write(folder.path().join("5"), "floe-snapshot 1 x\n{}\n").expect("written");
        fs::write(folder.path().join("9"), "").expect("written");
        let (mut records, messages) = open();
        assert_eq!(messages.len(), 2, "{messages:?}");
        let names: Vec<&str> = records.all().map(|record| record.name.as_str()).collect();
        assert_eq!(names, ["base", "renamed"]);
        assert_eq!(records.take_id(), 10);
        let top = records.find("renamed").expect("there").clone();
        assert!(matches!(records.parents(&top), Err(SnapshotError::NotFound(name)) if name == "middle"));
        // They are reported once.
        assert_eq!(open().1, Vec::<String>::new());
        records.remove("base").expect("removed");
        assert_eq!(open().0.all().count(), 1);
    }

    #[test]
    fn circles_of_parents_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut records, _) = Records::open(folder.path(), &BTreeSet::new()).expect("opened");
        records.store("", record(1, "a", Some("b"))).expect("stored");
        records.store("", record(2, "b", Some("a"))).expect("stored");
        let a = records.find("a").expect("there").clone();
        assert!(matches!(records.parents(&a), Err(SnapshotError::Failed(_))));
    }
}
