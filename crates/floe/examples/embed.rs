//! Lists an image and prints one of its files: `cargo run -p floe --example embed -- IMAGE PATH`.

use std::{env, error::Error, ffi::OsStr, io, io::Write, os::unix::ffi::OsStrExt};

use floe::{Image, OpenOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let [image, file] = &arguments[..] else { return Err("usage: embed IMAGE PATH".into()) };
    list_and_print(image, file, &mut io::stdout().lock())
}

pub(crate) fn list_and_print(image: &OsStr, file: &OsStr, output: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let image = Image::open(image, &OpenOptions::default())?;
    for entry in image.walk() {
        let entry = entry?;
        writeln!(output, "{:>10} {}", entry.attr.size, entry.path.escape_ascii())?;
    }
    let nid = image.resolve(file.as_bytes())?;
    let (mut buffer, mut offset) = (vec![0; 64 << 10], 0);
    while let len @ 1.. = image.read_at(nid, offset, &mut buffer)? {
        output.write_all(&buffer[..len])?;
        offset += len as u64;
    }
    Ok(())
}
