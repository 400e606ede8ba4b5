//! Images that the reference tool builds during the test, for features that the corpus lacks.

use std::{fs, path::Path, process::Command, sync::Arc};

use floe_erofs::{
    Erofs, dump,
    format::{self, MapHeader},
};
use floe_image::{BlockReader, ByteRange, DeviceId, FileSystem};
use floe_testkit::{
    DirectReader, KernelMount, Random, Versions,
    corpus::{Format, Materialised},
    manifest::{Comparison, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

/// Writes a tree of compressible files with tails of all sizes.
fn write_tree(root: &Path) {
    for number in 1..40 {
        let lines: Vec<String> = (1..number * 70).map(|line| format!("{line}")).collect();
        fs::write(root.join(format!("f{number}")), lines.join("\n")).expect("written");
    }
}

#[test]
fn data_compressed_inside_compressed_metadata_reads_as_in_the_kernel() {
    let needs = [Need::Root, Need::KernelErofs, Need::PeerOf("mkfs.erofs", Versions::Since("1.9"))];
    if !skip::ready(&needs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (tree, path) = (folder.path().join("tree"), folder.path().join("image"));
    fs::create_dir(&tree).expect("made");
    write_tree(&tree);
    let mkfs = peer("mkfs.erofs").expect("it is there");
    for options in [["-zlz4", "-C16384", "-m16384"], ["-zzstd", "-C4096", "-m4096"]] {
        let mut command = Command::new(&mkfs);
        command.arg("--quiet").args(options).arg("-Eztailpacking").arg(&path).arg(&tree);
        assert!(command.status().expect("it runs").success());
        let image = Materialised::single(&path, Format::Erofs);
        let mount = KernelMount::new(&image).expect("it is mounted");
        let numbers = DirectoryWalk { numbers: true, segments: true, metadata_only: false };
        let expected = walk::directory(&mount.path(), numbers).expect("it is walked");
        let reader = Arc::new(DirectReader::of(fs::read(&path).expect("it is read")));
        let file_system = Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>).expect("it is opened");
        assert!(file_system.info().features.contains(&"metabox".to_owned()));
        let read = |nid, range| reader.read_file(&file_system, nid, range);
        let found = walk::image(&file_system, &read).expect("it is walked");
        assert_eq!(differences(&expected, &found, &Comparison::default()), Vec::<String>::new(), "{options:?}");
        fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn extents_that_have_only_lengths_read_from_the_end_to_the_beginning() {
    if !skip::ready(&[Need::PeerOf("mkfs.erofs", Versions::Since("1.9"))]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (tree, path) = (folder.path().join("tree"), folder.path().join("image"));
    fs::create_dir(&tree).expect("made");
    let content = Random::new(7).text(20 << 20);
    fs::write(tree.join("text"), &content).expect("written");
    let mut command = Command::new(peer("mkfs.erofs").expect("it is there"));
    command.args(["--quiet", "-zlz4", "-C16384", "-E48bit", "--max-extent-bytes=16384"]).arg(&path).arg(&tree);
    assert!(command.status().expect("it runs").success());
    let reader = Arc::new(DirectReader::of(fs::read(&path).expect("it is read")));
    let erofs = Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>).expect("it is opened");
    let nid = erofs.lookup(erofs.root(), b"text").expect("it is read").expect("it is there");
    let report = dump::inode(&erofs, nid).expect("it is read");
    assert_eq!(report.layout, format::INODE_COMPRESSED_FULL);
    // The record size is in the map header: 0 means 4 bytes.
    let header = (report.position + report.inode_len + report.xattr_len).next_multiple_of(8);
    let bytes = reader.stored(DeviceId(0), header, MapHeader::SIZE).expect("it is read");
    let advise = MapHeader::from_prefix(&bytes).expect("it is whole").h_advise;
    assert_eq!(advise >> format::ADVISE_EXTRECSZ_BIT & format::ADVISE_EXTRECSZ_MASK, 0);
    for start in (0..content.len()).step_by(9_973).rev() {
        let range = ByteRange::new(start as u64, 5_000);
        let expected = &content[start..content.len().min(start + 5_000)];
        assert!(reader.read_file(&erofs, nid, range).expect("it is read") == expected, "{range}");
    }
}

#[test]
fn inline_data_of_interlaced_files_reads_as_stored_or_as_in_the_kernel() {
    let needs = [Need::Root, Need::KernelErofs, Need::PeerOf("mkfs.erofs", Versions::Series("1.9"))];
    if !skip::ready(&needs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (tree, path) = (folder.path().join("tree"), folder.path().join("image"));
    fs::create_dir(&tree).expect("made");
    let (mut as_stored, mut as_kernel) = (0, 0);
    for len in (5000..9000).step_by(500) {
        // The noise begins in a compressed pcluster, continues in a plain one, and ends in plain inline data. Its file is in the
        // packed inode, which is interlaced.
        let source = [Random::new(8).text(3000), Random::new(9).noise(len)].concat();
        fs::write(tree.join("noise"), &source).expect("written");
        let mut command = Command::new(peer("mkfs.erofs").expect("it is there"));
        command.args(["--quiet", "-zlz4", "-Eall-fragments,ztailpacking"]).arg(&path).arg(&tree);
        assert!(command.status().expect("it runs").success());
        let image = Materialised::single(&path, Format::Erofs);
        let mount = KernelMount::new(&image).expect("it is mounted");
        let in_kernel = fs::read(mount.path().join("noise")).expect("the kernel finds no fault");
        drop(mount);
        let reader = Arc::new(DirectReader::of(fs::read(&path).expect("it is read")));
        let erofs = Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>).expect("it is opened");
        let nid = erofs.lookup(erofs.root(), b"noise").expect("it is read").expect("it is there");
        let found = reader.read_file(&erofs, nid, ByteRange::new(0, source.len() as u64)).expect("it is read");
        assert!(found == source || found == in_kernel, "{len}");
        as_stored += usize::from(found == source && found != in_kernel);
        as_kernel += usize::from(found == in_kernel && found != source);
        let findings: Vec<String> = crate::check::findings(&reader).iter().map(ToString::to_string).collect();
        let is_told = findings.iter().any(|finding| finding.contains("the kernel reads other bytes"));
        assert!(is_told || in_kernel == source, "{len}: {findings:?}");
        fs::remove_file(&path).expect("removed");
    }
    assert!(as_stored > 0 && as_kernel > 0, "{as_stored} and {as_kernel}");
}
