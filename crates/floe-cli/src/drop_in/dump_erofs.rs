//! `dump.erofs`: its options and its output format.

use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    path::Path,
};

use floe::{FormatImage, Image, Nid, SuperblockChecksum};
use floe_erofs::Erofs;
use floe_image::ShownName;
use floe_sandbox::Mode;

use super::erofs_tool::{ErofsTool, Options, Wanted};
use crate::{
    confinement,
    erofs_report::{With, uuid_text, write_inode, write_statistics, write_superblock},
    fail::Fail,
    fake,
    iso_time::Zone,
    output::Output,
};

pub(super) const HELP: &str = "\
Usage: dump.erofs [OPTIONS] IMAGE
Show the structure of an EROFS image. This is floe under the name of dump.erofs.

 -s              the superblock (the default)
 -S              statistics of all files
 -e              the extents of an inode (with --nid or --path)
 --nid=#         the inode with this number
 --path=X        the inode under this path
 --ls            with an inode: the entries of the directory
 --cat           with an inode: its content, and nothing else
 --blkid-udev    attributes for udev
 --device=X      an extra device, in the order of the device table
 --offset=#      offset of the image in bytes
 --sandbox=off   do not confine the process that reads the image
 -h, --help, -V, --version
";

#[derive(Default)]
struct Shown {
    superblock: bool,
    statistics: bool,
    extents: bool,
    list: bool,
    content: bool,
    udev: bool,
    path: Option<OsString>,
    nid: Option<u64>,
}

/// Runs the program.
///
/// # Errors
/// The image cannot be opened or read, or the arguments are wrong.
pub(super) fn run(arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
    fake::leave();
    let tool = ErofsTool { name: "dump.erofs", help: HELP, usage_exit: 234 };
    let mut shown = Shown::default();
    let mut wanted = Wanted { sandbox, superblock_checksum: SuperblockChecksum::Ignored, ..Wanted::default() };
    let mut options = Options::new(arguments, "sSehV");
    while let Some(option) = options.next() {
        match option.name.as_str() {
            "s" => shown.superblock = true,
            "S" => shown.statistics = true,
            "e" => shown.extents = true,
            "ls" => shown.list = true,
            "cat" => shown.content = true,
            "blkid-udev" => shown.udev = true,
            "path" => match options.value(&option) {
                Some(path) => shown.path = Some(path),
                None => return tool.wrong(&format!("option '--{}' requires an argument", option.name)),
            },
            "nid" => match options.value(&option).as_deref().and_then(super::erofs_tool::number) {
                Some(nid) => shown.nid = Some(nid),
                None => return tool.wrong("invalid NID"),
            },
            _ => match wanted.take(&option, &mut options) {
                Ok(true) => {}
                Ok(false) => return tool.standard(&option),
                Err(message) => return tool.wrong(&message),
            },
        }
    }
    let [image_path] = match <[OsString; 1]>::try_from(options.into_operands()) {
        Ok(operands) => operands,
        Err(operands) => return tool.wrong_operands(&operands, "IMAGE"),
    };
    // The time zone is not accessible once the process is confined.
    let zone = Zone::local();
    let files = wanted.open_files(Path::new(&image_path), confinement::reading())?;
    let image = match files.and_then(|files| Image::of(files, &wanted.open_options())) {
        Ok(image) => image,
        Err(error) => return tool.unopened(error),
    };
    let FormatImage::Erofs(erofs) = image.format_image() else {
        return tool.failed("cannot find valid erofs superblock", 234);
    };
    Output::run(|output| show(&tool, &shown, &zone, &image, erofs, output))
}

fn show(
    tool: &ErofsTool,
    shown: &Shown,
    zone: &Zone,
    image: &Image,
    erofs: &Erofs,
    output: &mut dyn Write,
) -> io::Result<u8> {
    if shown.udev {
        let uuid = uuid_text(&image.file_system().info().uuid.unwrap_or_default());
        writeln!(output, "ID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}\nID_FS_TYPE=erofs\nID_FS_USAGE=filesystem")?;
        return Ok(0);
    }
    let complain = &|message: &str| tool.say(message);
    let has_inode = shown.path.is_some() || shown.nid.is_some();
    if shown.content {
        if shown.superblock || shown.statistics || shown.list {
            say!("The '--cat' flag is incompatible with '-S', '-e', '-s' and '--ls'.");
            return Ok(0);
        }
        if let Some(nid) = find(tool, shown, image) {
            show_content(tool, image, nid, output)?;
        }
        return Ok(0);
    }
    let is_default = !(shown.statistics || shown.extents || has_inode);
    if shown.superblock || is_default {
        write_superblock(erofs, zone, output, complain)?;
    }
    if shown.statistics {
        write_statistics(erofs, output, complain)?;
    }
    if shown.extents && !has_inode {
        tool.hint();
        return Ok(0);
    }
    if has_inode && let Some(nid) = find(tool, shown, image) {
        let with = With { entries: shown.list, extents: shown.extents, quotes: io::stdout().is_terminal(), zone };
        write_inode(with, erofs, nid, output, complain)?;
    }
    Ok(0)
}

fn find(tool: &ErofsTool, shown: &Shown, image: &Image) -> Option<Nid> {
    match (&shown.path, shown.nid) {
        (Some(path), _) => {
            let found = image.resolve_link(path.as_encoded_bytes());
            if found.is_err() {
                tool.say(&format!("read inode failed @ {}", path.shown()));
            }
            found.ok()
        }
        (None, Some(nid)) => Some(Nid(nid)),
        (None, None) => None,
    }
}

fn show_content(tool: &ErofsTool, image: &Image, nid: Nid, output: &mut dyn Write) -> io::Result<()> {
    let mut piece = vec![0; 1 << 20];
    let mut position = 0;
    loop {
        match image.read_at(nid, position, &mut piece) {
            Ok(0) => return Ok(()),
            Ok(len) => {
                output.write_all(&piece[..len])?;
                position += len as u64;
            }
            Err(error) => {
                tool.say(&format!("read file failed @ nid {nid}: {error}"));
                return Ok(());
            }
        }
    }
}
