//! `floe dump`: shows the structure of an image.

use std::io::{self, Write};

use clap::Args;
use floe::{FormatImage, Image, Nid};
use floe_engine::Blocking;
use floe_image::{DeviceId, Shown};

use crate::{
    erofs_report::{With, write_extent_statistics, write_inode, write_statistics, write_superblock},
    fail::{Exit, Fail},
    image_arguments::ImageArguments,
    iso_time::Zone,
    output::Output,
};

/// The offset and the length of each format's superblock, in bytes. An EROFS superblock may be longer.
const EROFS_SUPERBLOCK: (u64, usize) = (1024, 128);
const SQUASHFS_SUPERBLOCK_LEN: usize = 96;

/// The number of bytes in a line of a hex dump.
const RAW_LINE_BYTES: usize = 16;

/// Show the structure of an image: superblock, features, statistics, single inodes, and where their bytes are stored
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe dump system.erofs\n  \
    floe dump --statistics system.erofs\n  \
    floe dump --extents system.erofs /usr/bin/bash\n  \
    floe dump --nid 36 --raw system.erofs\n\n\
    Exit codes:\n  \
    0  everything was shown\n  \
    1  a part could not be read\n  \
    2  wrong usage\n  \
    3  the file is not an image, or is broken")]
pub(crate) struct Arguments {
    #[command(flatten)]
    image: ImageArguments,

    /// Inodes to show, by path; symbolic links are not followed
    #[arg(value_name = "PATH")]
    paths: Vec<std::ffi::OsString>,

    /// Show the inode with this number in the image
    #[arg(long, value_name = "N")]
    nid: Option<u64>,

    /// Show where the bytes of the inode are stored
    #[arg(short, long)]
    extents: bool,

    /// Show statistics: counts and sizes of inodes, data and blocks
    #[arg(short = 'S', long)]
    statistics: bool,

    /// Also show the raw bytes of the superblock, or of the inode (EROFS)
    #[arg(long)]
    raw: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let image = arguments.image.open()?;
    Output::run(|output| {
        let failed = std::cell::Cell::new(false);
        let complain = |message: &str| {
            failed.set(true);
            say!("floe: {message}");
        };
        show(arguments, &image, output, &complain)?;
        Ok(if failed.get() { Exit::Failed.code() } else { Exit::Done.code() })
    })
}

fn show(arguments: &Arguments, image: &Image, output: &mut dyn Write, complain: &dyn Fn(&str)) -> io::Result<()> {
    let mut nids: Vec<Nid> = arguments.nid.map(Nid).into_iter().collect();
    for path in &arguments.paths {
        match image.resolve_link(path.as_encoded_bytes()) {
            Ok(nid) => nids.push(nid),
            Err(error) => complain(&error.to_string()),
        }
    }
    let has_inodes = arguments.nid.is_some() || !arguments.paths.is_empty();
    if !has_inodes && !arguments.statistics {
        write_image(arguments, image, output, complain)?;
    }
    if arguments.statistics {
        match image.format_image() {
            FormatImage::Erofs(erofs) => {
                write_statistics(erofs, output, complain)?;
                write_extent_statistics(erofs, output, complain)?;
            }
            FormatImage::Squashfs(squashfs) => match floe_squashfs::dump::count(squashfs) {
                Ok(statistics) => write!(output, "{statistics}")?,
                Err(error) => complain(&error.to_string()),
            },
        }
    }
    for nid in nids {
        match image.format_image() {
            FormatImage::Erofs(erofs) => {
                let with = With { entries: false, extents: arguments.extents, quotes: true, zone: &Zone::UTC };
                write_inode(with, erofs, nid, output, complain)?;
                if arguments.raw {
                    match floe_erofs::dump::inode(erofs, nid) {
                        Ok(report) if report.is_in_metabox => complain("the inode is in the metabox: no raw bytes"),
                        Ok(report) => write_raw(image, report.position, report.inode_len as usize, output, complain)?,
                        Err(_) => {}
                    }
                }
            }
            FormatImage::Squashfs(squashfs) => match floe_squashfs::dump::describe_inode(squashfs, nid) {
                Ok(mut description) => {
                    if !arguments.extents {
                        description.extents.clear();
                    }
                    write!(output, "{description}")?;
                }
                Err(error) => complain(&format!("inode {nid}: {error}")),
            },
        }
    }
    Ok(())
}

fn write_image(
    arguments: &Arguments,
    image: &Image,
    output: &mut dyn Write,
    complain: &dyn Fn(&str),
) -> io::Result<()> {
    let (offset, len) = match image.format_image() {
        FormatImage::Erofs(erofs) => {
            write_superblock(erofs, &Zone::UTC, output, complain)?;
            EROFS_SUPERBLOCK
        }
        FormatImage::Squashfs(squashfs) => {
            let overview = floe_squashfs::dump::describe_image(squashfs);
            write!(output, "{overview}")?;
            (overview.superblock.offset, SQUASHFS_SUPERBLOCK_LEN)
        }
    };
    let info = image.file_system().info();
    if !info.label.is_empty() {
        writeln!(output, "Label: {}", Shown(&info.label))?;
    }
    if arguments.raw { write_raw(image, offset, len, output, complain) } else { Ok(()) }
}

/// Writes raw bytes of the image as a hex dump.
fn write_raw(
    image: &Image,
    offset: u64,
    len: usize,
    output: &mut dyn Write,
    complain: &dyn Fn(&str),
) -> io::Result<()> {
    let bytes = match image.reader().volume().block_reader(Blocking::Allowed).stored(DeviceId(0), offset, len) {
        Ok(bytes) => bytes,
        Err(error) => {
            complain(&error.to_string());
            return Ok(());
        }
    };
    for (index, line) in bytes.chunks(RAW_LINE_BYTES).enumerate() {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(output, "{:08x}  {}", offset + (index * RAW_LINE_BYTES) as u64, hex.join(" "))?;
    }
    Ok(())
}
