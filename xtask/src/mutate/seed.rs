//! The seed images of mutations.

use std::path::PathBuf;

use floe_squashfs::format as squashfs;
use floe_testkit::corpus::{Corpus, Format, ImageRecord};

use super::{erofs_structures, squashfs_plain::PlainSquashfs, structures::Structures};

/// Larger images are skipped.
const IMAGE_BYTES_MAX: u64 = 512 << 10;

/// The name suffix of a seed whose metadata was decompressed.
const PLAIN: &str = "+plain";

/// All seeds; their order depends only on the directory of images.
pub(crate) struct Seeds {
    corpus: Corpus,
    seeds: Vec<(String, ImageRecord)>,
}

/// A seed image.
pub(super) struct Seed {
    pub(super) name: String,
    /// The file name of the original image, without `.zst`.
    pub(super) base: String,
    /// The bytes of the original image.
    pub(super) base_bytes: Vec<u8>,
    pub(super) format: Format,
    /// The bytes to be mutated.
    pub(super) bytes: Vec<u8>,
    /// The offset of the file system in `bytes`.
    pub(super) offset: u64,
    pub(super) devices: Vec<PathBuf>,
    /// Its structures, relative to `offset`.
    pub(super) structures: Structures,
}

impl Seeds {
    /// The seeds in a directory of images whose names contain `word`.
    pub(super) fn new(corpus: Corpus, word: &str) -> Self {
        let mut records = corpus.images();
        records.retain(|image| !image.huge && image.image.size <= IMAGE_BYTES_MAX);
        records.sort_by(|left, right| left.name.cmp(&right.name));
        let named = records.into_iter().flat_map(|record| {
            let has_plain = record.format == Format::Squashfs || record.name.contains("metabox");
            let plain = has_plain.then(|| (format!("{}{PLAIN}", record.name), record.clone()));
            [Some((record.name.clone(), record)), plain].into_iter().flatten()
        });
        let seeds = named.filter(|(name, _)| name.contains(word)).collect();
        Self { corpus, seeds }
    }

    /// The number of seeds.
    pub(super) fn count(&self) -> usize {
        self.seeds.len()
    }

    /// The seed with this number, which must be below the count.
    pub(super) fn load(&self, index: usize) -> Seed {
        let (name, record) = &self.seeds[index];
        self.read(name, record)
    }

    /// The seed with this name.
    pub(super) fn named(&self, name: &str) -> Option<Seed> {
        self.seeds.iter().find(|(known, _)| known == name).map(|(name, record)| self.read(name, record))
    }

    /// The number of a random seed with the same format as this one.
    pub(super) fn alike(&self, index: usize, chance: u64) -> usize {
        let format = self.seeds[index].1.format;
        let alike = || (0..self.seeds.len()).filter(|other| self.seeds[*other].1.format == format);
        alike().nth((chance % alike().count() as u64) as usize).unwrap_or(index)
    }

    fn read(&self, name: &str, record: &ImageRecord) -> Seed {
        let base = record.image.file.trim_end_matches(".zst").rsplit('/').next().unwrap_or_default().to_owned();
        let base_bytes = self.corpus.bytes(&record.image);
        let devices = self.corpus.materialise(record).devices;
        let (head, image) = base_bytes.split_at(record.offset as usize);
        let (mut bytes, structures) = match (record.format, name.ends_with(PLAIN)) {
            (Format::Erofs, false) => (image.to_vec(), erofs_structures::find(image, None)),
            (Format::Erofs, true) => match erofs_structures::with_plain_metabox(image) {
                Some((plain, metabox)) => {
                    let structures = erofs_structures::find(&plain, Some(metabox));
                    (plain, structures)
                }
                None => (image.to_vec(), erofs_structures::find(image, None)),
            },
            (Format::Squashfs, false) => (image.to_vec(), stored_squashfs(image)),
            (Format::Squashfs, true) => match PlainSquashfs::new(image) {
                Some(plain) => (plain.bytes, plain.structures),
                None => (image.to_vec(), stored_squashfs(image)),
            },
        };
        bytes.splice(..0, head.iter().copied());
        let (format, offset) = (record.format, record.offset);
        Seed { name: name.to_owned(), base, base_bytes, format, bytes, offset, devices, structures }
    }
}

/// The structures of a SquashFS image that can be found without decoding.
fn stored_squashfs(bytes: &[u8]) -> Structures {
    let mut found = Structures::new(bytes.len());
    found.add("superblock", 0, squashfs::SuperBlock::FIELDS);
    let Some(raw) = squashfs::SuperBlock::from_prefix(bytes) else { return found };
    let tables = [
        ("stored inodes", raw.inode_table_start),
        ("stored directories", raw.directory_table_start),
        ("location list", raw.fragment_table_start),
        ("location list", raw.lookup_table_start),
        ("location list", raw.id_table_start),
        ("attribute id table", raw.xattr_id_table_start),
    ];
    found.references.extend(tables.map(|(_, start)| start));
    found.references.extend([raw.bytes_used, raw.root_inode]);
    found.add_words("stored data", squashfs::SuperBlock::SIZE as u64, raw.inode_table_start as usize, 1);
    for (kind, start) in tables {
        let next = tables.iter().map(|(_, start)| *start).filter(|next| *next > start).min();
        let len = next.unwrap_or(raw.bytes_used).saturating_sub(start);
        found.add_words(kind, start, len as usize, if kind == "location list" { 8 } else { 1 });
    }
    found
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use floe::{FileSystem, Image, OpenOptions, Reader};
    use floe_image::{ByteRange, Nid};
    use floe_testkit::{check_rows, manifest::Manifest, walk};

    use super::*;

    fn manifest(bytes: &[u8], seed: &Seed) -> Manifest {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(&file, &bytes[seed.offset as usize..]).expect("written");
        let options = OpenOptions { devices: seed.devices.clone(), ..OpenOptions::default() };
        let image = Image::open(file.path(), &options).expect("it opens");
        let read = |nid: Nid, range: ByteRange| {
            let mut bytes = vec![0; range.len() as usize];
            let reader: &Reader = image.reader();
            reader.read(nid, range.offset(), &mut bytes).map(|_| bytes)
        };
        let file_system: &Arc<dyn FileSystem> = image.file_system();
        let mut manifest = walk::image(file_system.as_ref(), &read).expect("it is walked");
        // SquashFS inode numbers stay the same; their positions do not matter.
        manifest.entries_mut().for_each(|(_, entry)| entry.blocks_512 = None);
        manifest
    }

    #[test]
    fn decompressed_metadata_has_the_same_content() {
        let seeds = Seeds::new(Corpus::fixtures(), "");
        let plain: Vec<usize> = (0..seeds.count()).filter(|index| seeds.seeds[*index].0.ends_with(PLAIN)).collect();
        assert!(plain.len() > 15, "{}", plain.len());
        check_rows(
            &plain,
            |index| seeds.seeds[*index].0.clone(),
            |index| {
                let seed = seeds.load(*index);
                let mut told = Vec::new();
                if seed.bytes == seed.base_bytes {
                    told.push("was not decoded".to_owned());
                }
                if seed.structures.kinds().len() < 10 && !seed.name.contains("empty") {
                    told.push(format!("only {} kinds of structures were found", seed.structures.kinds().len()));
                }
                if manifest(&seed.bytes, &seed) != manifest(&seed.base_bytes, &seed) {
                    told.push("holds something else".to_owned());
                }
                told
            },
        );
    }
}
