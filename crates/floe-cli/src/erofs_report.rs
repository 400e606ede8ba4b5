//! Reports about EROFS images in the format of `dump.erofs`.

use std::{
    borrow::Cow,
    io::{self, Write},
    ops::ControlFlow,
};

use floe::{Attr, FileType, Nid};
use floe_erofs::{ALGORITHMS, Erofs, dump, format};

use crate::iso_time::{IsoTime, Zone};
use floe_image::Shown;

/// The features, with the first kernel that supports each: major times 100 plus minor.
const FEATURES: &[(bool, u32, u32, &str)] = &[
    (true, 0, format::FEATURE_COMPAT_SB_CHKSUM, "sb_csum"),
    (true, 0, format::FEATURE_COMPAT_MTIME, "mtime"),
    (true, 0, format::FEATURE_COMPAT_XATTR_FILTER, "xattr_filter"),
    (true, 0, format::FEATURE_COMPAT_SHARED_EA_IN_METABOX, "shared_ea_in_metabox"),
    (true, 0, format::FEATURE_COMPAT_PLAIN_XATTR_PFX, "plain_xattr_pfx"),
    (true, 0, format::FEATURE_COMPAT_ISHARE_XATTRS, "ishare_xattrs"),
    (false, 504, format::FEATURE_INCOMPAT_ZERO_PADDING, "lz4_0padding"),
    (false, 513, format::FEATURE_INCOMPAT_COMPR_CFGS, "compr_cfgs"),
    (false, 513, format::FEATURE_INCOMPAT_BIG_PCLUSTER, "big_pcluster"),
    (false, 515, format::FEATURE_INCOMPAT_CHUNKED_FILE, "chunked_file"),
    (false, 516, format::FEATURE_INCOMPAT_DEVICE_TABLE, "device_table"),
    (false, 517, format::FEATURE_INCOMPAT_ZTAILPACKING, "ztailpacking"),
    (false, 601, format::FEATURE_INCOMPAT_FRAGMENTS, "fragments"),
    (false, 601, format::FEATURE_INCOMPAT_DEDUPE, "dedupe"),
    (false, 604, format::FEATURE_INCOMPAT_XATTR_PREFIXES, "xattr_prefixes"),
    (false, 615, format::FEATURE_INCOMPAT_48BIT, "48bit"),
    (false, 617, format::FEATURE_INCOMPAT_METABOX, "metabox"),
];

/// The file types that statistics distinguish by the suffix of the name.
const EXTENSIONS: [&str; 9] = [".txt", ".so", ".xml", ".apk", ".odex", ".vdex", ".oat", ".rc", ".otf"];

/// The largest size class of the statistics: 2 to the power of this, in KiB.
const SIZE_LOG2_MAX: usize = 16;

/// The parts of an inode to print, and their form.
#[derive(Clone, Copy)]
pub(crate) struct With<'a> {
    /// The entries of a directory.
    pub(crate) entries: bool,
    /// The locations of its bytes.
    pub(crate) extents: bool,
    /// Whether names are quoted. Otherwise they are printed as they are stored, which is not for terminals.
    pub(crate) quotes: bool,
    /// The time zone of times.
    pub(crate) zone: &'a Zone,
}

impl With<'_> {
    /// A name as it is printed.
    fn name<'name>(&self, name: &'name [u8]) -> Cow<'name, [u8]> {
        if self.quotes { Shown(name).to_string().into_bytes().into() } else { name.into() }
    }
}

/// Prints the superblock. Parts that cannot be read are reported to `complain`.
///
/// # Errors
/// The output cannot be written.
pub(crate) fn write_superblock(
    erofs: &Erofs,
    zone: &Zone,
    output: &mut dyn Write,
    complain: &dyn Fn(&str),
) -> io::Result<()> {
    let report = match dump::superblock(erofs) {
        Ok(report) => report,
        Err(error) => {
            complain(&error.to_string());
            return Ok(());
        }
    };
    let raw = &report.raw;
    let mut line =
        |name: &str, value: &dyn std::fmt::Display| writeln!(output, "Filesystem {:<35}{value}", format!("{name}:"));
    line("magic number", &format_args!("0x{:04X}", format::SUPER_MAGIC_V1))?;
    line("blocksize", &report.block_size)?;
    line("blocks", &report.devices.iter().fold(report.block_count, |sum, slot| sum.saturating_add(slot.blocks)))?;
    line("inode metadata start block", &raw.meta_blkaddr)?;
    line("shared xattr metadata start block", &raw.xattr_blkaddr)?;
    line("root nid", &report.root)?;
    if let Some(packed) = report.packed {
        line("packed nid", &packed)?;
    }
    if let Some(metabox) = report.metabox {
        line("metabox nid", &metabox)?;
    }
    if raw.feature_incompat & format::FEATURE_INCOMPAT_COMPR_CFGS != 0 {
        line("compr_algs", &report.algorithms.join(", "))?;
    } else {
        line("lz4_max_distance", &raw.u1)?;
    }
    line("sb_size", &report.len)?;
    line("inode count", &raw.inos)?;
    let built = floe_image::FileSystem::info(erofs).built;
    line("created", &IsoTime(zone.shift(built)).in_words())?;
    let named = |is_compat: bool, bits: u32| {
        let set = FEATURES.iter().filter(move |(compat, _, bit, _)| *compat == is_compat && bits & bit != 0);
        set.map(|(_, _, _, name)| format!("{name} ")).collect::<String>()
    };
    line("compatible features", &named(true, raw.feature_compat))?;
    line("incompatible features", &named(false, raw.feature_incompat))?;
    line("UUID", &uuid_text(&raw.uuid))?;
    let of_features = FEATURES
        .iter()
        .filter(|(compat, _, bit, _)| !compat && raw.feature_incompat & bit != 0)
        .map(|(_, version, _, _)| *version);
    let announced = ALGORITHMS.iter().filter(|algorithm| report.algorithms.contains(&algorithm.name));
    let of_algorithms = announced.filter_map(|algorithm| algorithm.kernel_min);
    match of_features.chain(of_algorithms).max() {
        Some(version) => {
            writeln!(output, "Required upstream Linux kernel version:       {}.{}", version / 100, version % 100)
        }
        None => Ok(()),
    }
}

/// Prints an inode. Parts that cannot be read are reported to `complain`.
///
/// # Errors
/// The output cannot be written.
pub(crate) fn write_inode(
    with: With<'_>,
    erofs: &Erofs,
    nid: Nid,
    output: &mut dyn Write,
    complain: &dyn Fn(&str),
) -> io::Result<()> {
    let report = match dump::inode(erofs, nid) {
        Ok(report) => report,
        Err(error) => {
            complain(&format!("read inode failed @ nid {nid}: {error}"));
            return Ok(());
        }
    };
    let attr = &report.attr;
    let is_packed = dump::superblock(erofs).is_ok_and(|superblock| superblock.packed == Some(nid));
    let path = match (is_packed, dump::path_of(erofs, nid)) {
        (true, _) => b"(packed file)".to_vec(),
        (false, Some(path)) => with.name(&path).into_owned(),
        (false, None) => b"(not found)".to_vec(),
    };
    let mut line = Vec::from(b"Path : ");
    line.extend_from_slice(&path);
    line.push(b'\n');
    output.write_all(&line)?;
    let (size, stored, kind) = (attr.size, report.stored_len, category(attr));
    writeln!(output, "Size: {size}  On-disk size: {stored}  {kind}")?;
    let (links, layout, ratio) = (attr.link_count, report.layout, percent(stored, size));
    writeln!(output, "NID: {nid}   Links: {links}   Layout: {layout}   Compression ratio: {ratio}%")?;
    writeln!(output, "Inode size: {}   Xattr size: {}", report.inode_len, report.xattr_len)?;
    let access = attr.permissions & 0o777;
    let letters: String = "rwxrwxrwx"
        .chars()
        .enumerate()
        .map(|(index, letter)| if access >> (8 - index) & 1 != 0 { letter } else { '-' })
        .collect();
    writeln!(output, "Uid: {}   Gid: {}  Access: {access:04o}/{letters}", attr.uid, attr.gid)?;
    let time = format!("{:#}", IsoTime(with.zone.shift(attr.modified))).replace('T', " ");
    writeln!(output, "Timestamp: {}", time.trim_end_matches('Z'))?;
    if with.entries {
        writeln!(output, "\n       NID TYPE  FILENAME")?;
        let mut written = Ok(());
        let read = floe_image::FileSystem::read_dir(erofs, nid, Default::default(), &mut |dirent| {
            let mut line = format!("{:>10}    {}  ", dirent.nid, directory_type(dirent.file_type)).into_bytes();
            line.extend_from_slice(&with.name(dirent.name));
            line.push(b'\n');
            written = output.write_all(&line);
            if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        written?;
        if let Err(error) = read {
            complain(&format!("failed to list directory contents: {error}"));
            return Ok(());
        }
    }
    if with.extents { write_extents(erofs, nid, &path, output, complain) } else { Ok(()) }
}

fn write_extents(
    erofs: &Erofs,
    nid: Nid,
    path: &[u8],
    output: &mut dyn Write,
    complain: &dyn Fn(&str),
) -> io::Result<()> {
    let layout = dump::inode(erofs, nid).map_or(0, |report| report.layout);
    let block_size = floe_image::FileSystem::info(erofs).block_size.into();
    writeln!(output, "\n Ext:   logical offset   |  length :     physical offset    |  length")?;
    let (mut count, mut written) = (0u64, Ok(()));
    let read = dump::extents(erofs, nid, &mut |extent| {
        let (start, mut end) = (extent.range.offset(), extent.range.end());
        let (offset, stored, device) = match extent.place {
            dump::ExtentPlace::Stored { offset, len, device, .. }
                if matches!(layout, format::INODE_CHUNK_BASED | format::INODE_FLAT_PLAIN) =>
            {
                // The last block counts as a whole block.
                let rest = end.next_multiple_of(block_size) - end;
                end += rest;
                (offset, len + rest, device.0)
            }
            dump::ExtentPlace::Stored { offset, len, device, .. } => (offset, len, device.0),
            dump::ExtentPlace::Hole | dump::ExtentPlace::Fragment { .. } => (0, 0, 0),
        };
        let len = end - start;
        let note = if device == 0 { String::new() } else { format!("  # device {device}") };
        let past = offset.saturating_add(stored);
        written = writeln!(
            output,
            "{count:>4}: {start:>8}..{end:>8} | {len:>7} : {offset:>10}..{past:>10} | {stored:>7}{note}"
        );
        count += 1;
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    written?;
    if let Err(error) = read {
        complain(&format!("failed to get file blocks range: {error}"));
        return Ok(());
    }
    output.write_all(path)?;
    writeln!(output, ": {count} extents found")
}

/// Prints statistics of all files. Parts that cannot be read are reported to `complain`.
///
/// # Errors
/// The output cannot be written.
pub(crate) fn write_statistics(erofs: &Erofs, output: &mut dyn Write, complain: &dyn Fn(&str)) -> io::Result<()> {
    let mut statistics = dump::Statistics::default();
    let (mut original, mut stored) = ([0u64; SIZE_LOG2_MAX + 1], [0u64; SIZE_LOG2_MAX + 1]);
    let mut extensions = [0u64; EXTENSIONS.len() + 1];
    dump::entries(erofs, &mut |entry| {
        match entry {
            Ok(dump::Entry { path, report }) => {
                statistics.add(&report);
                if report.attr.file_type == FileType::Regular {
                    original[size_step(report.attr.size)] += 1;
                    stored[size_step(report.stored_len)] += 1;
                    extensions[extension(path)] += 1;
                }
            }
            Err(unreadable) => complain(&format!("read dir failed: {}", unreadable.error)),
        }
        ControlFlow::Continue(())
    });
    let packed = dump::superblock(erofs).ok().and_then(|superblock| superblock.packed);
    if let Some(report) = packed.and_then(|packed| dump::inode(erofs, packed).ok()) {
        statistics.add_special(&report);
        stored[size_step(report.stored_len)] += 1;
    }
    writeln!(output, "Filesystem total file count:\t\t{}", statistics.path_count())?;
    for (kind, count) in [
        ("unknown type", 0),
        ("regular file", statistics.regular_files),
        ("directory", statistics.directories),
        ("char dev", statistics.character_devices),
        ("block dev", statistics.block_devices),
        ("FIFO file", statistics.fifos),
        ("SOCK file", statistics.sockets),
        ("symlink file", statistics.symlinks),
    ] {
        writeln!(output, "Filesystem {kind} count:\t\t{count}")?;
    }
    writeln!(output, "Filesystem compressed files:            {}", statistics.compressed)?;
    writeln!(output, "Filesystem uncompressed files:          {}", statistics.uncompressed)?;
    writeln!(output, "Filesystem total original file size:    {} Bytes", statistics.original_bytes)?;
    writeln!(output, "Filesystem total file size:             {} Bytes", statistics.stored_bytes)?;
    let ratio = percent(statistics.stored_bytes, statistics.original_bytes);
    writeln!(output, "Filesystem compress rate:               {ratio}%")?;
    let files = statistics.regular_files;
    for (title, counts) in [("Original", original), ("On-disk", stored)] {
        writeln!(output, "\n{title} file size distribution:")?;
        write_chart_header(output, ">=(KB) .. <(KB) ")?;
        for (step, count) in counts.into_iter().enumerate() {
            let lower = if step == 0 { 0 } else { 1u64 << (step - 1) };
            let name = if step == SIZE_LOG2_MAX {
                format!("{lower:>6} ..")
            } else {
                format!("{lower:>6} .. {:<6}", 1u64 << step)
            };
            write_chart_line(output, &name, count, files)?;
        }
    }
    writeln!(output, "\nFile type distribution:")?;
    write_chart_header(output, "type")?;
    for (name, count) in EXTENSIONS.into_iter().chain(["others"]).zip(extensions) {
        write_chart_line(output, &format!("{name:<17}"), count, files)?;
    }
    Ok(())
}

fn write_chart_header(output: &mut dyn Write, first: &str) -> io::Result<()> {
    writeln!(output, "{first:<16} {:>11} {:>16} |{:<50}|", "count", "ratio", "distribution")
}

fn write_chart_line(output: &mut dyn Write, name: &str, count: u64, files: u64) -> io::Result<()> {
    let ratio = if files == 0 { 0.0 } else { 100.0 * count as f64 / files as f64 };
    let bar = "#".repeat((ratio / 2.0) as usize);
    writeln!(output, "{name:<16}\t{count:<11} {ratio:>8.2}% |{bar:<50}|")
}

/// The size class of the statistics for a size.
fn size_step(bytes: u64) -> usize {
    let kibibytes = bytes >> 10;
    ((u64::BITS - kibibytes.leading_zeros()) as usize).min(SIZE_LOG2_MAX)
}

/// The file type for a name, by its suffix; a prefix of a suffix also matches.
fn extension(path: &[u8]) -> usize {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let end = name.iter().rposition(|byte| *byte == b'.').map(|dot| &name[dot..]);
    end.and_then(|end| EXTENSIONS.iter().position(|known| known.as_bytes().starts_with(end)))
        .unwrap_or(EXTENSIONS.len())
}

/// `part` in percent of `whole`, as the C library prints it.
fn percent(part: u64, whole: u64) -> String {
    match (part, whole) {
        (0, 0) => "-nan".to_owned(),
        (_, 0) => "inf".to_owned(),
        _ => format!("{:.2}", part.wrapping_mul(100) as f64 / whole as f64),
    }
}

fn category(attr: &Attr) -> &'static str {
    match attr.file_type {
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink file",
        FileType::CharacterDevice => "char dev",
        FileType::BlockDevice => "block dev",
        FileType::Fifo => "FIFO file",
        FileType::Socket => "SOCK file",
    }
}

/// The number for a type in directory entries.
fn directory_type(file_type: FileType) -> u8 {
    match file_type {
        FileType::Regular => 1,
        FileType::Directory => 2,
        FileType::CharacterDevice => 3,
        FileType::BlockDevice => 4,
        FileType::Fifo => 5,
        FileType::Socket => 6,
        FileType::Symlink => 7,
    }
}

/// A UUID as text.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Prints size statistics of extents and encoded blocks. Parts that cannot be read are reported to `complain`.
///
/// # Errors
/// The output cannot be written.
pub(crate) fn write_extent_statistics(
    erofs: &Erofs,
    output: &mut dyn Write,
    complain: &dyn Fn(&str),
) -> io::Result<()> {
    let mut statistics = dump::Statistics::default();
    dump::entries(erofs, &mut |entry| {
        let Ok(dump::Entry { report, .. }) = entry else { return ControlFlow::Continue(()) };
        if report.attr.file_type == FileType::Regular {
            let read = dump::extents(erofs, report.attr.nid, &mut |extent| {
                statistics.add_extent(&extent);
                ControlFlow::Continue(())
            });
            if let Err(error) = read {
                complain(&error.to_string());
            }
        }
        ControlFlow::Continue(())
    });
    for (title, histogram) in
        [("Extents of files", &statistics.extent_sizes), ("Encoded blocks on disk", &statistics.pcluster_sizes)]
    {
        let steps = histogram.steps();
        let total: u64 = steps.iter().map(|(_, count)| count).sum();
        writeln!(output, "\n{title}, by size:")?;
        write_chart_header(output, "from (bytes)")?;
        for (from, count) in steps {
            write_chart_line(output, &format!("{from:>13}"), count, total)?;
        }
    }
    writeln!(output, "\nHoles: {}, extents in the packed inode: {}", statistics.holes, statistics.fragments)
}
