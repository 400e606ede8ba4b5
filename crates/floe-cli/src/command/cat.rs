//! `floe cat`: writes files of an image to standard output.

use std::io::{self, Write};

use clap::Args;
use floe::{FileType, Image};

use crate::{
    fail::{Exit, Fail},
    image_arguments::ImageArguments,
    output::Output,
};
use floe_image::Shown;

/// The number of bytes per read.
const PIECE_BYTES: usize = 1 << 20;

/// Write files of an image to standard output, one after the other, byte for byte
///
/// Symbolic links are followed inside the image. A file that cannot be read is reported on stderr, and the next file
/// follows.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe cat system.erofs /etc/os-release\n  \
    floe cat --start 1048576 --length 4096 system.erofs /var/disk.raw | xxd | head\n\n\
    Exit codes:\n  \
    0  everything was written (or the reader closed the pipe)\n  \
    1  a part could not be read\n  \
    2  wrong usage\n  \
    3  the file is not an image, or is broken")]
pub(crate) struct Arguments {
    #[command(flatten)]
    image: ImageArguments,

    /// The files
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<std::ffi::OsString>,

    /// Start at this byte of each file
    #[arg(long, value_name = "BYTE", default_value_t = 0, hide_default_value = true)]
    start: u64,

    /// Write at most this many bytes of each file
    #[arg(long, value_name = "BYTES")]
    length: Option<u64>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let image = arguments.image.open()?;
    Output::run(|output| {
        let mut exit = Exit::Done.code();
        for path in &arguments.paths {
            let path = path.as_encoded_bytes();
            if let Err(message) = write_file(&image, path, arguments, output)? {
                say!("floe: {message}");
                exit = Exit::Failed.code();
            }
        }
        Ok(exit)
    })
}

/// Writes a file. Returns an error message if the file cannot be read.
fn write_file(
    image: &Image,
    path: &[u8],
    arguments: &Arguments,
    output: &mut dyn Write,
) -> io::Result<Result<(), String>> {
    let attr = match image.resolve(path).and_then(|nid| Ok(image.attr(nid)?)) {
        Ok(attr) => attr,
        Err(error) => return Ok(Err(error.to_string())),
    };
    match attr.file_type {
        FileType::Regular => {}
        FileType::Directory => return Ok(Err(format!("{}: is a directory", Shown(path)))),
        _ => return Ok(Err(format!("{}: not a regular file", Shown(path)))),
    }
    let end = arguments.length.map_or(attr.size, |length| arguments.start.saturating_add(length)).min(attr.size);
    let mut position = arguments.start;
    let mut buffer = Vec::new();
    while position < end {
        let len = usize::try_from(end - position).unwrap_or(usize::MAX).min(PIECE_BYTES);
        buffer.resize(len, 0);
        match image.read_at(attr.nid, position, &mut buffer) {
            Ok(0) => return Ok(Err(format!("{}: shorter than its size", Shown(path)))),
            Ok(count) => {
                output.write_all(&buffer[..count])?;
                position += count as u64;
            }
            Err(error) => return Ok(Err(format!("{}: {error}", Shown(path)))),
        }
    }
    Ok(Ok(()))
}
