//! Corrupted images end in errors that name what is wrong, or in right bytes.

mod memo_reader;

use std::ops::ControlFlow;

use floe_image::{ByteRange, DirectoryCursor, FileSystem, FileType, Nid};
use floe_squashfs::Squashfs;
use floe_testkit::corpus::{Corpus, Format};
use memo_reader::MemoReader;

#[test]
fn show() {
    let corpus = Corpus::locate().expect("there");
    for corrupt in corpus.corrupt_images() {
        if corrupt.format() != Format::Squashfs {
            continue;
        }
        let reader = MemoReader::of(corpus.corrupt_bytes(&corrupt));
        let squashfs = match Squashfs::open(reader.clone()) {
            Ok(squashfs) => squashfs,
            Err(error) => {
                println!("{:32} open: {error}", corrupt.name);
                continue;
            }
        };
        let mut pending = vec![(squashfs.root(), 0)];
        let mut errors = Vec::new();
        while let Some((nid, depth)) = pending.pop() {
            let attr = match squashfs.attr(nid) {
                Ok(attr) => attr,
                Err(error) => {
                    errors.push(format!("attr: {error}"));
                    continue;
                }
            };
            match squashfs.xattr_names(nid) {
                Ok(names) => {
                    for name in names {
                        if let Err(error) = squashfs.xattr(nid, &name) {
                            errors.push(format!("xattr: {error}"));
                        }
                    }
                }
                Err(error) => errors.push(format!("xattr_names: {error}")),
            }
            match attr.file_type {
                FileType::Directory if depth < 20 => {
                    if let Err(error) = squashfs.read_dir(nid, DirectoryCursor(0), &mut |dirent| {
                        if dirent.name != b"." && dirent.name != b".." {
                            pending.push((dirent.nid, depth + 1));
                        }
                        ControlFlow::Continue(())
                    }) {
                        errors.push(format!("read_dir: {error}"));
                    }
                }
                FileType::Regular => {
                    let mut position = 0;
                    while position < attr.size.min(16 << 20) {
                        match reader.read_file(&squashfs, nid, ByteRange::new(position, 1 << 20)) {
                            Ok(bytes) => position += bytes.len() as u64,
                            Err(error) => {
                                errors.push(format!("read: {error}"));
                                break;
                            }
                        }
                    }
                }
                FileType::Symlink => {
                    if let Err(error) = squashfs.read_link(nid) {
                        errors.push(format!("read_link: {error}"));
                    }
                }
                _ => {}
            }
            let _ = Nid(0);
        }
        println!("{:32} {} errors: {}", corrupt.name, errors.len(), errors.first().cloned().unwrap_or_default());
    }
}
