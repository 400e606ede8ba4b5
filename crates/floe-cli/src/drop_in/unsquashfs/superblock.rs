//! Prints the superblock.

use std::{
    io::{self, Write},
    path::Path,
};

use floe::{FileSystem, Timestamp};
use floe_image::{BlockReader, DeviceId, ShownName};
use floe_squashfs::{CompressorOptions, Squashfs, dump, format};

use crate::iso_time::{IsoTime, Zone};

/// The names of bits, lowest bit first.
const GZIP_STRATEGIES: &[&str] = &["default", "filtered", "huffman_only", "run_length_encoded", "fixed"];
const XZ_FILTERS: &[&str] = &["x86", "powerpc", "ia64", "arm", "armthumb", "sparc", "arm64", "riscv"];
const LZO_ALGORITHMS: &[&str] = &["lzo1x_1", "lzo1x_1_11", "lzo1x_1_12", "lzo1x_1_15", "lzo1x_999"];

/// The only LZO algorithm with levels.
const LZO_WITH_LEVELS: u32 = 4;

/// Prints the superblock of an image.
///
/// # Errors
/// The output cannot be written.
pub(super) fn write(
    squashfs: &Squashfs,
    reader: &dyn BlockReader,
    path: &Path,
    zone: &Zone,
    output: &mut dyn Write,
) -> io::Result<()> {
    let overview = dump::describe_image(squashfs);
    let superblock = &overview.superblock;
    let built = Timestamp { seconds: superblock.built_seconds.into(), nanoseconds: 0 };
    writeln!(output, "Found a valid SQUASHFS 4:0 superblock on {}.", path.shown())?;
    writeln!(output, "Creation or last append time {}", IsoTime(zone.shift(built)).in_words())?;
    let bytes = superblock.bytes_used;
    let (kibibytes, mebibytes) = (bytes as f64 / 1024.0, bytes as f64 / (1024.0 * 1024.0));
    writeln!(output, "Filesystem size {bytes} bytes ({kibibytes:.2} Kbytes / {mebibytes:.2} Mbytes)")?;
    writeln!(output, "Compression {}", superblock.compression.name())?;
    if let Some(options) = &overview.options {
        write_options(options, output)?;
    }
    let has = |bits: u16| superblock.flags.has(bits);
    let un = |bits: u16| if has(bits) { "un" } else { "" };
    let not = |is_so: bool| if is_so { "" } else { "not " };
    writeln!(output, "Block size {}", superblock.block_size())?;
    writeln!(output, "Filesystem is {}exportable via NFS", not(has(format::FLAG_EXPORTABLE)))?;
    writeln!(output, "Inodes are {}compressed", un(format::FLAG_UNCOMPRESSED_INODES))?;
    writeln!(output, "Data is {}compressed", un(format::FLAG_UNCOMPRESSED_DATA))?;
    let ids = if has(format::FLAG_UNCOMPRESSED_INODES) { "un" } else { un(format::FLAG_UNCOMPRESSED_IDS) };
    writeln!(output, "Uids/Gids (Id table) are {ids}compressed")?;
    if has(format::FLAG_NO_FRAGMENTS) {
        writeln!(output, "Fragments are not stored")?;
    } else {
        writeln!(output, "Fragments are {}compressed", un(format::FLAG_UNCOMPRESSED_FRAGMENTS))?;
        writeln!(output, "Tailends are {}packed into fragments", not(has(format::FLAG_ALWAYS_FRAGMENTS)))?;
    }
    let has_xattrs = !has(format::FLAG_NO_XATTRS);
    if has_xattrs {
        writeln!(output, "Xattrs are {}compressed", un(format::FLAG_UNCOMPRESSED_XATTRS))?;
    } else {
        writeln!(output, "Xattrs are not stored")?;
    }
    writeln!(output, "Duplicates are {}removed", not(has(format::FLAG_DUPLICATES)))?;
    writeln!(output, "Number of fragments {}", superblock.fragment_count)?;
    writeln!(output, "Number of inodes {}", squashfs.info().inode_count)?;
    writeln!(output, "Number of ids {}", superblock.id_count)?;
    if has_xattrs {
        writeln!(output, "Number of xattr ids {}", xattr_set_count(reader, superblock.xattr_id_table_start))?;
    }
    Ok(())
}

/// The number of attribute sets: a word after the start of the table (docs/format/squashfs.md, Attributes).
fn xattr_set_count(reader: &dyn BlockReader, table_start: Option<u64>) -> u32 {
    let word = table_start.and_then(|start| reader.stored(DeviceId(0), start.checked_add(8)?, 4).ok());
    word.and_then(|word| word.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))).unwrap_or(0)
}

fn write_options(options: &CompressorOptions, output: &mut dyn Write) -> io::Result<()> {
    let named = |names: &[&str], bits: u32| {
        let set = names.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 != 0);
        set.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
    };
    match *options {
        CompressorOptions::Gzip { level, window_log2, strategies } => {
            let names = if strategies == 0 { "default".to_owned() } else { named(GZIP_STRATEGIES, strategies.into()) };
            writeln!(output, "\tcompression-level {level}\n\twindow-size {window_log2}\n\tStrategies selected: {names}")
        }
        CompressorOptions::Lzo { algorithm, level } => {
            let name = LZO_ALGORITHMS.get(algorithm as usize).unwrap_or(&"unknown");
            writeln!(output, "\talgorithm {name}")?;
            if algorithm == LZO_WITH_LEVELS { writeln!(output, "\tcompression level {level}") } else { Ok(()) }
        }
        CompressorOptions::Xz { dictionary_bytes, filters } => {
            writeln!(output, "\tDictionary size {dictionary_bytes}")?;
            match named(XZ_FILTERS, filters) {
                names if names.is_empty() => writeln!(output, "\tNo filters specified"),
                names => writeln!(output, "\tFilters selected: {names}"),
            }
        }
        CompressorOptions::Lz4 { high_compression: true, .. } => {
            writeln!(output, "\tHigh Compression option specified (-Xhc)")
        }
        CompressorOptions::Zstd { level } => writeln!(output, "\tcompression-level {level}"),
        CompressorOptions::Lz4 { .. } | CompressorOptions::None => Ok(()),
    }
}
