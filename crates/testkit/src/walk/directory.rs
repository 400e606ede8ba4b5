//! Walks a directory of the machine: a mount or an extracted tree.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileTypeExt, MetadataExt},
    },
    path::Path,
};

use rustix::fs::SeekFrom;
use sha2::{Digest, Sha256};

use crate::manifest::{Entry, Manifest, Segment, hex_from_bytes};

/// The read size in bytes.
const READ_BYTES: usize = 256 << 10;

/// The largest xattr value and name list: `XATTR_SIZE_MAX`, `XATTR_LIST_MAX`.
const XATTR_BYTES_MAX: usize = 65_536;

/// Optional properties to record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirectoryWalk {
    /// Record `st_ino` and `st_blocks`.
    pub numbers: bool,
    /// Record the data and holes of each file with `SEEK_DATA` and `SEEK_HOLE`.
    pub segments: bool,
    /// Skip the content of files.
    pub metadata_only: bool,
}

/// The contents of a directory according to `lstat`, `readlink`, `llistxattr`, `lgetxattr` and `read`. The directory
/// itself is `/`. Crosses mount points.
///
/// # Errors
/// The first failing call, with its path.
pub fn directory(root: &Path, walk: DirectoryWalk) -> io::Result<Manifest> {
    let mut walker = Walker { walk, manifest: Manifest::default(), inodes: BTreeMap::new(), contents: HashMap::new() };
    let mut pending = vec![(root.to_path_buf(), b"/".to_vec())];
    while let Some((location, path)) = pending.pop() {
        let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", location.display()));
        let metadata = fs::symlink_metadata(&location).map_err(at)?;
        walker.add(&location, &path, &metadata).map_err(at)?;
        if metadata.is_dir() {
            for child in fs::read_dir(&location).map_err(at)? {
                let name = child.map_err(at)?.file_name();
                pending.push((location.join(&name), join(&path, name.as_bytes())));
            }
        }
    }
    walker.manifest.link(&walker.inodes);
    Ok(walker.manifest)
}

/// `path/name`; `path` may be the root.
pub(super) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if path == b"/" { b"" } else { b"/" };
    [path, separator, name].concat()
}

struct Walker {
    walk: DirectoryWalk,
    manifest: Manifest,
    inodes: BTreeMap<Vec<u8>, u64>,
    contents: HashMap<u64, (String, Option<Vec<Segment>>)>,
}

impl Walker {
    fn add(&mut self, location: &Path, path: &[u8], metadata: &Metadata) -> io::Result<()> {
        let file_type = type_letter(metadata);
        let mut entry = Entry {
            file_type,
            mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            size: metadata.size(),
            link_count: metadata.nlink(),
            modified: (metadata.mtime(), u32::try_from(metadata.mtime_nsec()).map_err(io::Error::other)?),
            device: matches!(file_type, 'b' | 'c')
                .then(|| (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()))),
            target: None,
            xattrs: xattrs(location)?,
            sha256: None,
            link_of: None,
            inode_number: self.walk.numbers.then(|| metadata.ino()),
            blocks_512: self.walk.numbers.then(|| metadata.blocks()),
            segments: None,
        };
        match file_type {
            'l' => entry.target = Some(fs::read_link(location)?.into_os_string().into_vec()),
            'f' if !self.walk.metadata_only => {
                let (sha256, segments) = self.content(location, metadata)?;
                (entry.sha256, entry.segments) = (Some(sha256), segments);
            }
            _ => {}
        }
        if metadata.nlink() > 1 {
            self.inodes.insert(path.to_vec(), metadata.ino());
        }
        self.manifest.insert(path.to_vec(), entry);
        Ok(())
    }

    fn content(&mut self, location: &Path, metadata: &Metadata) -> io::Result<(String, Option<Vec<Segment>>)> {
        // In a corrupt image, different files can have one number.
        if let Some(known) = self.contents.get(&metadata.ino()).filter(|_| metadata.nlink() > 1) {
            return Ok(known.clone());
        }
        let mut file = File::open(location)?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                len => hash.update(&buffer[..len]),
            }
        }
        let segments = if self.walk.segments { Some(segments(&file, metadata.size())?) } else { None };
        let content = (hex_from_bytes(&hash.finalize()), segments);
        if metadata.nlink() > 1 {
            self.contents.insert(metadata.ino(), content.clone());
        }
        Ok(content)
    }
}

fn type_letter(metadata: &Metadata) -> char {
    let file_type = metadata.file_type();
    if file_type.is_dir() {
        'd'
    } else if file_type.is_symlink() {
        'l'
    } else if file_type.is_char_device() {
        'c'
    } else if file_type.is_block_device() {
        'b'
    } else if file_type.is_fifo() {
        'p'
    } else if file_type.is_socket() {
        's'
    } else {
        'f'
    }
}

fn xattrs(location: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let names = match filled(|buffer| rustix::fs::llistxattr(location, buffer)) {
        Err(rustix::io::Errno::NOTSUP) => return Ok(BTreeMap::new()),
        names => names?,
    };
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let pairs = names.map(|name| {
        let value = filled(|buffer| rustix::fs::lgetxattr(location, OsString::from_vec(name.to_vec()), buffer))?;
        Ok((name.to_vec(), value))
    });
    pairs.collect()
}

/// Calls a function with a buffer of the largest size that Linux allows for xattr values and name lists.
fn filled(call: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; XATTR_BYTES_MAX];
    let len = call(&mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

fn segments(file: &File, size: u64) -> io::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    let mut position = 0;
    while position < size {
        let data = match rustix::fs::seek(file, SeekFrom::Data(position)) {
            Err(rustix::io::Errno::NXIO) => size,
            data => data?,
        };
        if data > position {
            segments.push(Segment { offset: position, end: data, is_data: false });
        }
        if data < size {
            let end = rustix::fs::seek(file, SeekFrom::Hole(data))?;
            if end <= data {
                return Err(io::Error::other(format!("SEEK_HOLE from {data} gives {end}")));
            }
            segments.push(Segment { offset: data, end, is_data: true });
            position = end;
        } else {
            position = size;
        }
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::manifest::{Comparison, differences};

    #[test]
    fn links_holes_and_odd_names_are_seen() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let odd = root.join(OsString::from_vec(b"odd \xff\n".to_vec()));
        let file = File::create(&odd).expect("created");
        file.write_all_at(b"end", 1 << 20).expect("written");
        fs::hard_link(&odd, root.join("zz")).expect("linked");
        std::os::unix::fs::symlink("target \u{fe}", root.join("link")).expect("linked");
        rustix::fs::lsetxattr(root, "user.note", b"\0note", rustix::fs::XattrFlags::empty()).expect("an attribute");
        let walk = DirectoryWalk { numbers: true, segments: true, metadata_only: false };
        let manifest = directory(root, walk).expect("walked");
        let paths: Vec<&[u8]> = manifest.entries().map(|(path, _)| path).collect();
        assert_eq!(paths, [&b"/"[..], b"/link", b"/odd \xff\n", b"/zz"]);
        let xattrs = &manifest.entry(b"/").expect("found").xattrs;
        assert_eq!(xattrs.get(&b"user.note"[..]).map(Vec::as_slice), Some(&b"\0note"[..]));
        let entry = manifest.entry(b"/odd \xff\n").expect("found");
        assert_eq!((entry.size, entry.link_count, &entry.link_of), ((1 << 20) + 3, 2, &None));
        let segments = entry.segments.as_ref().expect("asked for");
        assert_eq!(segments.last().map(|segment| segment.end), Some(entry.size));
        assert!(segments.iter().any(|segment| !segment.is_data), "{segments:?}");
        let second = manifest.entry(b"/zz").expect("found");
        assert_eq!(second.link_of.as_deref(), Some(&b"/odd \xff\n"[..]));
        assert_eq!(second.sha256, entry.sha256);
        assert_eq!(manifest.entry(b"/link").expect("found").target.as_deref(), Some("target \u{fe}".as_bytes()));

        file.write_all_at(b"x", 5).expect("written");
        let changed = directory(root, DirectoryWalk::default()).expect("walked");
        let told = differences(&manifest, &changed, &Comparison::default());
        assert!(told.iter().any(|line| line.starts_with("/zz: sha256 is")), "{told:?}");
    }
}
