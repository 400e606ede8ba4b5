//! An EROFS image as a [`FileSystem`]; how it is opened.

use std::{
    io,
    ops::ControlFlow,
    sync::{Arc, OnceLock, Weak},
};

use floe_image::{
    Attr, BlockReader, ByteRange, Capabilities, DeviceId, DirectoryCursor, Dirent, Error, Extent, FileSystem,
    FileSystemInfo, FileType, ImageSource, Nid, Outline, Place, Result, SeekTarget, Timestamp, Xattr,
};

use super::{
    content,
    directory::Directory,
    inode::{self, Inode},
    map::Mapper,
    parameters::Parameters,
    superblock::{Superblock, SuperblockChecksum},
    volume::{Parts, Special, Volume},
    xattr::Xattrs,
    xattr_prefixes::{self, LongPrefix},
};
use crate::format;

/// Upper bound of the ratio between directory bytes and the length of the image with its devices. Directories may be
/// compressed, but each entry has its own number and name.
const ENTRIES_RATIO_MAX: u64 = 16;

/// The length of the shortest entry in bytes: a record and a name of one byte.
const ENTRY_BYTES_MIN: u64 = 13;

/// An EROFS image as a [`FileSystem`].
pub struct Erofs {
    volume: Volume,
    prefixes: Arc<[LongPrefix]>,
}

impl Erofs {
    /// Opens the image in `reader`. Source 0 is the image; its extra devices follow in the order of
    /// [`extra_devices`](crate::extra_devices). If there is only source 0, it must contain the devices at their unified
    /// addresses.
    ///
    /// # Errors
    /// The image is not EROFS, uses unsupported features, or breaks the format in structures that every access needs.
    /// Faults of individual files appear when the files are used.
    pub fn open(reader: Arc<dyn BlockReader>) -> Result<Self> {
        Self::open_with(reader, SuperblockChecksum::Required)
    }

    /// As [`Erofs::open`]; `checksum` decides whether the checksum of the superblock matters.
    ///
    /// # Errors
    /// As [`Erofs::open`].
    pub fn open_with(reader: Arc<dyn BlockReader>, checksum: SuperblockChecksum) -> Result<Self> {
        let superblock = Superblock::read(reader.as_ref(), checksum)?;
        let volume = Volume::open(reader, superblock)?;
        let prefixes = xattr_prefixes::read(&volume)?.into();
        Ok(Self { volume, prefixes })
    }

    /// The open volume.
    pub(super) fn volume(&self) -> &Volume {
        &self.volume
    }

    fn inode(&self, nid: Nid) -> Result<Inode> {
        Inode::read(&self.volume, nid)
    }

    fn xattrs_of<'inode>(&'inode self, inode: &'inode Inode) -> Result<Option<Xattrs<'inode>>> {
        Xattrs::new(&self.volume, inode, &self.prefixes)
    }
}

impl FileSystem for Erofs {
    fn with_reader(self: Arc<Self>, reader: Arc<dyn BlockReader>) -> Arc<dyn FileSystem> {
        Arc::new(Self { volume: self.volume.with_reader(reader), prefixes: Arc::clone(&self.prefixes) })
    }

    fn root(&self) -> Nid {
        self.volume.superblock.root
    }

    fn info(&self) -> FileSystemInfo {
        let superblock = &self.volume.superblock;
        let name = superblock.raw.volume_name;
        let name_len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let epoch = superblock.epoch;
        FileSystemInfo {
            format: "erofs",
            magic: format::SUPER_MAGIC_V1,
            block_size: 1 << superblock.block_size.log2(),
            block_count: superblock.block_count.saturating_add(self.volume.devices.block_count()),
            inode_count: superblock.inode_count,
            name_bytes_max: format::NAME_LEN,
            built: Timestamp { seconds: epoch.seconds.wrapping_add(i64::from(superblock.raw.build_time)), ..epoch },
            uuid: Some(superblock.raw.uuid).filter(|uuid| *uuid != [0; 16]),
            label: name.into_iter().take(name_len).collect(),
            features: superblock.features.words(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { has_acls: true, has_label: true, limits_inodes: false }
    }

    fn attr(&self, nid: Nid) -> Result<Attr> {
        Ok(self.inode(nid)?.attr(&self.volume))
    }

    fn nid_of(&self, inode_number: u64) -> Option<Nid> {
        Some(inode::nid_of(&self.volume, inode_number))
    }

    fn inode_number_max(&self) -> u64 {
        inode::inode_number_max(&self.volume)
    }

    fn possible_numbers(&self, first: u64) -> Result<u64> {
        inode::possible_numbers(&self.volume, first)
    }

    fn outline(&self, nid: Nid) -> Result<Outline> {
        Ok(self.inode(nid)?.outline(&self.volume))
    }

    fn lookup(&self, directory: Nid, name: &[u8]) -> Result<Option<Nid>> {
        Directory::new(&self.volume, &self.inode(directory)?)?.lookup(name)
    }

    fn read_dir(
        &self,
        directory: Nid,
        cursor: DirectoryCursor,
        visit: &mut dyn FnMut(Dirent<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        Directory::new(&self.volume, &self.inode(directory)?)?.read(cursor, visit)
    }

    fn entry_count_max(&self) -> u64 {
        let reader = &self.volume.reader;
        let lens = (0..reader.device_count()).filter_map(|device| reader.device_len(DeviceId(device)).ok());
        lens.fold(0, u64::saturating_add).saturating_mul(ENTRIES_RATIO_MAX) / ENTRY_BYTES_MIN
    }

    fn read_link(&self, nid: Nid) -> Result<Vec<u8>> {
        let inode = self.inode(nid)?;
        if inode.file_type != FileType::Symlink {
            return Err(Error::WrongType { expected: "a symbolic link", nid });
        }
        content::link_target(&self.volume, &inode)
    }

    fn xattr(&self, nid: Nid, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let inode = self.inode(nid)?;
        self.xattrs_of(&inode)?.map_or(Ok(None), |xattrs| xattrs.value(name))
    }

    fn xattr_names(&self, nid: Nid) -> Result<Vec<Vec<u8>>> {
        let inode = self.inode(nid)?;
        self.xattrs_of(&inode)?.map_or(Ok(Vec::new()), |xattrs| xattrs.names())
    }

    fn xattrs(&self, nid: Nid, visit: &mut dyn FnMut(Xattr<'_>) -> ControlFlow<()>) -> Result<()> {
        let inode = self.inode(nid)?;
        self.xattrs_of(&inode)?.map_or(Ok(()), |xattrs| xattrs.each(visit))
    }

    fn map(&self, nid: Nid, range: ByteRange, extents: &mut Vec<Extent>) -> Result<()> {
        Mapper::new(&self.volume, &self.inode(nid)?)?.extents(range, extents)
    }

    fn seek(&self, nid: Nid, offset: u64, target: SeekTarget) -> Result<Option<u64>> {
        Mapper::new(&self.volume, &self.inode(nid)?)?.seek(offset, target)
    }
}

impl Volume {
    /// Opens the image in `reader` with the given superblock.
    ///
    /// # Errors
    /// The image breaks the format or uses unsupported features, in structures that every access needs.
    pub(super) fn open(reader: Arc<dyn BlockReader>, superblock: Superblock) -> Result<Self> {
        let parameters = Parameters::read(reader.as_ref(), superblock)?;
        let parts = Parts { parameters, metabox: OnceLock::new(), packed: OnceLock::new() };
        let volume = Self::of(Arc::new(parts), reader);
        if let Some(nid) = volume.superblock.metabox {
            let inode = Inode::read(&volume, nid)?;
            let _ = volume.metabox_len.set(inode.size);
            let _ = volume.metabox.set(Special::new(inode));
        }
        if let Some(nid) = volume.superblock.packed {
            let _ = volume.packed.set(Special::new(Inode::read(&volume, nid)?));
        }
        let root = Inode::read(&volume, volume.superblock.root)?;
        if root.file_type != FileType::Directory {
            return Err(Error::corrupt("root is not a directory", Place::inode(root.nid)));
        }
        if let Some(metabox) = volume.metabox.get() {
            let (parts, reader) = (Arc::downgrade(&volume.parts), Arc::downgrade(&volume.reader));
            let source = MetaboxSource { parts, reader, len: metabox.inode.size };
            if let Ok(device) = volume.reader.add_derived(Arc::new(source)) {
                let _ = volume.metabox_device.set(device);
            }
        }
        Ok(volume)
    }
}

/// The maximum number of bytes that one read of the metabox returns.
const PART_LEN_MAX: usize = 1 << 20;

/// The metabox's content as a source, for compressed data inside the metabox.
///
/// The volume's reader owns this source, so the source refers to the volume and the reader only weakly.
struct MetaboxSource {
    parts: Weak<Parts>,
    reader: Weak<dyn BlockReader>,
    len: u64,
}

impl ImageSource for MetaboxSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        let closed = || io::Error::other("the image is closed");
        let parts = self.parts.upgrade().ok_or_else(closed)?;
        let volume = Volume::of(parts, self.reader.upgrade().ok_or_else(closed)?);
        let metabox = &volume.metabox.get().ok_or_else(closed)?.inode;
        let end = u64::try_from(output.len()).ok().and_then(|len| offset.checked_add(len));
        if end.is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut position = offset;
        for part in output.chunks_mut(PART_LEN_MAX) {
            let bytes = content::read(&volume, metabox, position, part.len()).map_err(io_error)?;
            part.copy_from_slice(&bytes);
            position = position.saturating_add(u64::try_from(part.len()).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    fn try_read_at(&self, _offset: u64, _output: &mut [u8]) -> io::Result<bool> {
        // The bytes have to be decoded first.
        Ok(false)
    }
}

fn io_error(error: Error) -> io::Error {
    match &error {
        Error::Io { error: cause, .. } => io::Error::new(cause.kind(), error),
        _ => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}
