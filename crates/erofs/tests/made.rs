//! Images made on the spot by the reference tool, for what the corpus does not have.

use std::{fs, path::Path, process::Command, sync::Arc};

use floe_erofs::Erofs;
use floe_image::{BlockReader, FileSystem};
use floe_testkit::{
    DirectReader, KernelMount,
    corpus::{Format, Materialised},
    manifest::{Comparison, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

/// A tree whose files compress, with tails of all sizes.
fn write_tree(root: &Path) {
    for number in 1..40 {
        let lines: Vec<String> = (1..number * 70).map(|line| format!("{line}")).collect();
        fs::write(root.join(format!("f{number}")), lines.join("\n")).expect("written");
    }
}

#[test]
fn data_compressed_inside_compressed_metadata_reads_as_in_the_kernel() {
    let needs = [Need::Root, Need::KernelErofs, Need::Peer("mkfs.erofs")];
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
        let image = Materialised { path: path.clone(), format: Format::Erofs, offset: 0, devices: Vec::new() };
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
