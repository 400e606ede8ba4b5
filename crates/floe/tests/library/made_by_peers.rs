//! Generated trees that the reference tools make into images are read back unchanged.

use std::process::Command;

use floe::{ByteRange, Image, OpenOptions};
use floe_testkit::{
    Tree, Versions, check_rows,
    manifest::{Comparison, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

/// Options for mkfs.erofs.
const EROFS_OPTIONS: [&str; 14] = [
    "",
    "-b512",
    "-Enoinline_data",
    "--chunksize=4096",
    "-zlz4",
    "-zlz4 -C65536 -Eztailpacking",
    "-zlz4 -Elegacy-compress",
    "-zlz4hc -C1048576 -Eall-fragments,dedupe",
    "-zlz4:lzma:zstd:deflate -C16384",
    "-zlzma -C65536 -Eztailpacking,fragments",
    "-zdeflate -C16384",
    "-zzstd -C65536 -Efragments",
    "-zlz4 -E48bit",
    "-zzstd -C16384 -m4096",
];

#[test]
fn trees_made_into_images_are_read_as_they_were() {
    if !skip::ready(&[Need::PeerOf("mkfs.erofs", Versions::Since("1.9"))]) {
        return;
    }
    let mkfs = peer("mkfs.erofs").expect("it is there");
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("source");
    Tree::small(20).write(&source).expect("written");
    let expected = walk::directory(&source, DirectoryWalk::default()).expect("walked");
    check_rows(
        &EROFS_OPTIONS,
        |options| format!("mkfs.erofs {options}"),
        |options| {
            let path = folder.path().join(format!("image {options}"));
            let mut command = Command::new(&mkfs);
            // Only the larger form of inodes has nanoseconds.
            command.args(["--quiet", "-Eforce-inode-extended"]).args(options.split_whitespace());
            let output = command.arg(&path).arg(&source).output().expect("mkfs.erofs runs");
            if !output.status.success() {
                return vec![String::from_utf8_lossy(&output.stderr).into_owned()];
            }
            let image = match Image::open(&path, &OpenOptions::default()) {
                Ok(image) => image,
                Err(error) => return vec![error.to_string()],
            };
            let read = |nid, range: ByteRange| {
                let mut bytes = vec![0; range.len() as usize];
                let len = image.read_at(nid, range.offset(), &mut bytes)?;
                bytes.truncate(len);
                Ok(bytes)
            };
            let found = walk::image(image.file_system().as_ref(), &read).expect("walked");
            let comparison = Comparison { directory_shape_is_free: true, ..Comparison::default() };
            differences(&expected, &found, &comparison)
        },
    );
}
