//! Checks of images without data whose only extra device is an archive, as containerd makes one of each layer: the archive follows
//! the image in the same file.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use floe_erofs::format::{DeviceSlot, SuperBlock};
use floe_testkit::{
    Versions, check_rows, peer,
    skip::{self, Need},
};

use crate::support::program::{floe, run, told};

const SUPERBLOCK_AT: usize = 1024;
/// The offset of the features with the checksum in the superblock.
const COMPATIBLE_AT: usize = SUPERBLOCK_AT + 8;

/// An image, and its archive.
struct Layer {
    index: Vec<u8>,
    archive: Vec<u8>,
}

impl Layer {
    fn new(folder: &Path) -> Self {
        let source = folder.join("source");
        fs::create_dir_all(source.join("below")).expect("ours");
        fs::write(source.join("large"), b"0123456789abcdef".repeat(10_000)).expect("ours");
        fs::write(source.join("below/small"), "small").expect("ours");
        fs::write(source.join("below/zeros"), [0; 5000]).expect("ours");
        made(Command::new("tar").args(["-cf", "archive", "-C", "source", "."]).current_dir(folder));
        let mut mkfs = Command::new(peer("mkfs.erofs").expect("it is there"));
        made(mkfs.args(["--quiet", "--tar=i", "-Enoinline_data", "index", "archive"]).current_dir(folder));
        let read = |name| fs::read(folder.join(name)).expect("made");
        Self { index: read("index"), archive: read("archive") }
    }

    /// The file with both, and `len` bytes less or more.
    fn whole(&self, more: isize) -> Vec<u8> {
        let mut whole = [self.index.as_slice(), &self.archive].concat();
        whole.resize(whole.len().checked_add_signed(more).expect("long enough"), 0);
        whole
    }

    /// The file with both, and a changed entry of the device table.
    fn with_slot(&self, change: impl Fn(&mut DeviceSlot)) -> Vec<u8> {
        let mut whole = self.whole(0);
        let superblock = SuperBlock::from_prefix(&whole[SUPERBLOCK_AT..]).expect("a superblock");
        let at = usize::from(superblock.devt_slotoff) * DeviceSlot::SIZE;
        let mut slot = DeviceSlot::from_prefix(&whole[at..]).expect("a slot");
        change(&mut slot);
        whole[at..at + DeviceSlot::SIZE].copy_from_slice(&slot.to_bytes());
        // The checksum would be wrong now.
        whole[COMPATIBLE_AT] &= !1;
        whole
    }
}

fn made(command: &mut Command) {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn an_archive_behind_its_index_is_no_fault() {
    if !skip::ready(&[Need::PeerOf("mkfs.erofs", Versions::Since("1.9"))]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let layer = Layer::new(folder.path());
    let archive = folder.path().join("archive");
    let less = 11 * 1024 + 512;
    let short = layer.archive.len() - less;
    /// The file to check, its extra device, and the fault that the check finds.
    type Row<'a> = (&'a str, Vec<u8>, Option<PathBuf>, &'a str);
    let rows: Vec<Row<'_>> = vec![
        ("appended", layer.whole(0), None, ""),
        ("appended, with more behind it", layer.whole(10_000), None, ""),
        ("appended, without the end of the archive", layer.whole(-1024), None, ""),
        ("apart", layer.index.clone(), Some(archive.clone()), ""),
        ("apart, although it is appended", layer.whole(0), Some(archive), ""),
        ("missing", layer.index.clone(), None, "needs extra device 1"),
        ("cut off in its data", layer.whole(-(layer.archive.len() as isize - 4096)), None, "needs extra device 1"),
        ("cut off in its last files", layer.whole(-(less as isize)), None, "needs extra device 1"),
        ("apart, cut off", layer.index.clone(), Some(folder.path().join("short")), "past the end of the image"),
        ("smaller than its data", layer.with_slot(|slot| slot.blocks_lo = 100), None, "data past the block count"),
        ("elsewhere", layer.with_slot(|slot| slot.uniaddr_lo = 100_000), None, "needs extra device 1"),
    ];
    fs::write(folder.path().join("short"), &layer.archive[..short]).expect("written");
    check_rows(
        &rows,
        |(name, ..)| (*name).to_owned(),
        |(_, image, device, fault)| {
            let place = tempfile::tempdir().expect("a folder");
            let path = place.path().join("layer");
            fs::write(&path, image).expect("written");
            let mut check = floe();
            check.arg("check");
            let mut fsck = floe();
            fsck.arg0("fsck.erofs").arg("--extract");
            if let Some(device) = device {
                check.arg("--device").arg(device);
                fsck.arg(format!("--device={}", device.display()));
            }
            let (checked, fsck) = (run(check.arg(&path)), told(&run(fsck.arg(&path))));
            let words = [checked.stdout, checked.stderr].concat();
            let words = String::from_utf8_lossy(&words).into_owned();
            let is_right = match *fault {
                "" => words.contains("no faults") && checked.status.success() && fsck == (Some(0), String::new()),
                // The original does not compare with the block counts.
                "data past the block count" => words.contains(fault),
                _ => words.contains(fault) && !checked.status.success() && fsck.0 != Some(0),
            };
            if is_right { Vec::new() } else { vec![format!("{}: {words}; fsck: {fsck:?}", checked.status)] }
        },
    );
}
