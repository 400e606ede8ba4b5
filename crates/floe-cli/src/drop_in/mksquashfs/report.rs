//! What `mksquashfs` prints: scripts and installers parse these lines.

use std::io::{self, Write};

use floe_image::ShownName;
use floe_mkfs::{Options as BuildOptions, PackedTails, SquashfsOptions, Summary};

use super::accounts::Accounts;

/// Prints what is built.
pub(super) fn begin(build: &BuildOptions, squashfs: &SquashfsOptions, output: &mut dyn Write) -> io::Result<()> {
    let processors = build.jobs;
    let plural = if processors.get() == 1 { "" } else { "s" };
    writeln!(output, "Parallel mksquashfs: Using {processors} processor{plural}")?;
    let block_bytes = 1u64 << squashfs.block_size_log2;
    writeln!(output, "Creating 4.0 filesystem on {}, block size {block_bytes}.", build.output.shown())
}

/// Prints what was built.
pub(super) fn end(
    summary: &Summary,
    build: &BuildOptions,
    squashfs: &SquashfsOptions,
    compressor: &str,
    output: &mut dyn Write,
) -> io::Result<()> {
    let numbers = summary.squashfs.clone().unwrap_or_default();
    let parts = squashfs.uncompressed;
    let part = |is_uncompressed: bool| if is_uncompressed { "uncompressed" } else { "compressed" };
    writeln!(
        output,
        "\n{}Squashfs 4.0 filesystem, {compressor} compressed, data block size {}",
        if squashfs.exports { "Exportable " } else { "" },
        1u64 << squashfs.block_size_log2
    )?;
    writeln!(
        output,
        "\t{} data, {} metadata, {} fragments,\n\t{} xattrs, {} ids",
        part(parts.data),
        part(parts.inodes),
        if squashfs.tails == PackedTails::None { "no" } else { part(parts.fragments) },
        if build.xattrs.keep { part(parts.xattrs) } else { "no" },
        part(parts.ids || parts.inodes),
    )?;
    writeln!(output, "\tduplicates are {}removed", if squashfs.shares_files { "" } else { "not " })?;
    let (used, whole) = (numbers.bytes_used as f64, numbers.uncompressed_bytes as f64);
    writeln!(output, "Filesystem size {:.2} Kbytes ({:.2} Mbytes)", used / 1024.0, used / 1_048_576.0)?;
    writeln!(
        output,
        "\t{:.2}% of uncompressed filesystem size ({:.2} Kbytes)",
        share(numbers.bytes_used, numbers.uncompressed_bytes),
        whole / 1024.0
    )?;
    table("Inode", "inode", numbers.inode_table, output)?;
    table("Directory", "directory", numbers.directory_table, output)?;
    if numbers.xattr_sets > 0 {
        table("Xattr", "xattr", numbers.xattr_table, output)?;
    }
    if squashfs.shares_files {
        writeln!(output, "Number of duplicate files found {}", numbers.duplicates)?;
    } else {
        writeln!(output, "No duplicate files removed")?;
    }
    for (what, count) in [
        ("inodes", summary.inodes),
        ("files", summary.files),
        ("fragments", u64::from(numbers.fragments)),
        ("symbolic links", numbers.symlinks),
        ("device nodes", numbers.devices),
        ("fifo nodes", numbers.fifos),
        ("socket nodes", numbers.sockets),
        ("directories", summary.directories),
        ("hard-links", numbers.hard_links),
        ("ids (unique uids + gids)", numbers.ids as u64),
        ("uids", numbers.uids.len() as u64),
    ] {
        // Without fragments, the original has no line about them.
        if what != "fragments" || squashfs.tails != PackedTails::None {
            writeln!(output, "Number of {what} {count}")?;
        }
    }
    let accounts = Accounts::default();
    for uid in &numbers.uids {
        writeln!(output, "\t{} ({uid})", accounts.user_name(*uid))?;
    }
    writeln!(output, "Number of gids {}", numbers.gids.len())?;
    for gid in &numbers.gids {
        writeln!(output, "\t{} ({gid})", accounts.group_name(*gid))?;
    }
    Ok(())
}

fn table(title: &str, name: &str, (stored, decoded): (u64, u64), output: &mut dyn Write) -> io::Result<()> {
    writeln!(output, "{title} table size {stored} bytes ({:.2} Kbytes)", stored as f64 / 1024.0)?;
    writeln!(output, "\t{:.2}% of uncompressed {name} table size ({decoded} bytes)", share(stored, decoded))
}

fn share(stored: u64, decoded: u64) -> f64 {
    if decoded == 0 { 0.0 } else { 100.0 * stored as f64 / decoded as f64 }
}
