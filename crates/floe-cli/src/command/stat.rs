//! `floe stat`: shows attributes.

use std::{
    io::{self, Write},
    ops::ControlFlow,
};

use clap::Args;
use floe::{Attr, Error, FileSystemInfo, FileType, Image, Xattr};
use serde::Serialize;

use crate::{
    fail::{Exit, Fail},
    image_arguments::ImageArguments,
    inode_record::{InodeRecord, ModeText, hex},
    iso_time::IsoTime,
    output::Output,
};
use floe_image::{Shown, ShownName, json_name};

/// Show attributes of files in an image, or without PATH the properties of the image
///
/// A symbolic link is shown as such; with -L its target is shown.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe stat system.erofs\n  \
    floe stat system.erofs /usr/bin/ping /etc/mtab\n  \
    floe stat --json system.erofs /usr/bin/ping | jq .xattrs\n\n\
    With --json there is one object per line, as for `floe ls`, with xattrs (name to value in hex).\n\n\
    Exit codes:\n  \
    0  everything was shown\n  \
    1  a part could not be read\n  \
    2  wrong usage\n  \
    3  the file is not an image, or is broken")]
pub(crate) struct Arguments {
    #[command(flatten)]
    image: ImageArguments,

    /// Paths to show; without them, the image itself
    #[arg(value_name = "PATH")]
    paths: Vec<std::ffi::OsString>,

    /// Follow a symbolic link at the end of a path
    #[arg(short = 'L', long)]
    dereference: bool,

    /// Write one JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ImageRecord {
    format: &'static str,
    offset: u64,
    block_size: u32,
    blocks: u64,
    inodes: u64,
    built: (i64, u32),
    uuid: Option<String>,
    label: String,
    features: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let image = arguments.image.open()?;
    Output::run(|output| {
        if arguments.paths.is_empty() {
            write_image(&image, arguments, output)?;
        }
        let mut exit = Exit::Done.code();
        for path in &arguments.paths {
            let path = path.as_encoded_bytes();
            let found = if arguments.dereference { image.resolve(path) } else { image.resolve_link(path) };
            let shown = match found.and_then(|nid| Ok(image.attr(nid)?)) {
                Ok(attr) => write_inode(&image, path, &attr, arguments.json, output)?
                    .map_err(|error| format!("{}: {error}", Shown(path))),
                Err(error) => Err(error.to_string()),
            };
            if let Err(message) = shown {
                say!("floe: {message}");
                exit = Exit::Failed.code();
            }
        }
        Ok(exit)
    })
}

fn write_image(image: &Image, arguments: &Arguments, output: &mut dyn Write) -> io::Result<()> {
    let FileSystemInfo { format, block_size, block_count, inode_count, built, uuid, label, features, .. } =
        image.file_system().info();
    let uuid = uuid.map(uuid_text);
    if arguments.json {
        let record = ImageRecord {
            format,
            offset: image.offset(),
            block_size,
            blocks: block_count,
            inodes: inode_count,
            built: (built.seconds, built.nanoseconds),
            uuid,
            label: json_name(&label),
            features,
        };
        return writeln!(output, "{}", serde_json::to_string(&record).unwrap_or_default());
    }
    writeln!(output, "   Image: {}", arguments.image.image.shown())?;
    writeln!(output, "  Format: {} at byte {}", image.format(), image.offset())?;
    writeln!(output, "  Blocks: {block_count} of {block_size} bytes")?;
    writeln!(output, "  Inodes: {inode_count}")?;
    writeln!(output, "   Built: {}", IsoTime(built))?;
    if let Some(uuid) = uuid {
        writeln!(output, "    UUID: {uuid}")?;
    }
    if !label.is_empty() {
        writeln!(output, "   Label: {}", Shown(&label))?;
    }
    writeln!(output, "Features: {}", if features.is_empty() { "none".to_owned() } else { features.join(" ") })
}

/// Shows one inode. Returns the parts that cannot be read.
fn write_inode(
    image: &Image,
    path: &[u8],
    attr: &Attr,
    json: bool,
    output: &mut dyn Write,
) -> io::Result<Result<(), Error>> {
    let file_system = image.file_system().as_ref();
    if json {
        return match InodeRecord::new(file_system, path, attr, true) {
            Ok(record) => output.write_all(record.to_line().as_bytes()).map(Ok),
            Err(error) => Ok(Err(error)),
        };
    }
    let mut fault = None;
    write!(output, "  File: {}", Shown(path))?;
    if attr.file_type == FileType::Symlink {
        match file_system.read_link(attr.nid) {
            Ok(target) => write!(output, " -> {}", Shown(&target))?,
            Err(error) => fault = Some(error),
        }
    }
    writeln!(output)?;
    let (size, blocks, kind) = (attr.size, attr.blocks_512, kind(attr));
    writeln!(output, "  Size: {size:<15} Blocks: {blocks:<10} Block size: 512    {kind}")?;
    let (inode_number, nid, links) = (attr.inode_number, attr.nid, attr.link_count);
    write!(output, " Inode: {inode_number:<15} Nid: {:<13} Links: {links}", nid.to_string())?;
    if matches!(attr.file_type, FileType::CharacterDevice | FileType::BlockDevice) {
        write!(output, "      Device type: {},{}", attr.device.major, attr.device.minor)?;
    }
    writeln!(output)?;
    let (mode, uid, gid) = (attr.permissions, attr.uid, attr.gid);
    writeln!(output, "Access: ({mode:04o}/{})  Uid: {uid}  Gid: {gid}", ModeText(attr))?;
    writeln!(output, "Modify: {:#}", IsoTime(attr.modified))?;
    let mut written = Ok(());
    let read = file_system.xattrs(attr.nid, &mut |Xattr { name, value }| {
        written = writeln!(output, " Xattr: {} = {}", Shown(name), value_text(value));
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    written?;
    fault = read.err().or(fault);
    Ok(fault.map_or(Ok(()), Err))
}

fn kind(attr: &Attr) -> &'static str {
    match attr.file_type {
        FileType::Regular if attr.size == 0 => "regular empty file",
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::CharacterDevice => "character special file",
        FileType::BlockDevice => "block special file",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// A value in the notation of getfattr: text in quotes, anything else in hex.
fn value_text(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if !text.chars().any(char::is_control) => format!("{text:?}"),
        _ => format!("0x{}", hex(value)),
    }
}

fn uuid_text(uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
