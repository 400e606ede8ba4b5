//! The kernel mounts virtual images and shows the contents of the manifests.

use std::process::Command;

use floe_testkit::{
    Versions, check_rows,
    corpus::{Corpus, ImageRecord},
    manifest::{Comparison, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

use crate::support::{Front, KernelFront, KernelLog, keeps_directory_blocks, kernel_complaints};

fn images(corpus: &Corpus) -> Vec<ImageRecord> {
    corpus.sample().into_iter().filter(|image| !image.huge).collect()
}

#[test]
fn the_kernel_mount_matches_the_manifests() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::KernelErofs]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let log = KernelLog::from_now();
    check_rows(
        &images(&corpus),
        |image| image.name.clone(),
        |image| {
            let front = match Front::of_record(&corpus, image) {
                Ok(front) => front,
                Err(error) => return vec![error.to_string()],
            };
            let keeps_directories = image.kernel_is_truth() && keeps_directory_blocks(&front);
            let mounted = match KernelFront::new(front, "") {
                Ok(mounted) => mounted,
                Err(reason) => return vec![reason],
            };
            let comparison = Comparison { directory_shape_is_free: !keeps_directories, ..Comparison::default() };
            let manifest = corpus.manifest(image);
            let mut told = Vec::new();
            for round in ["first", "once more"] {
                let found = walk::directory(&mounted.path(), DirectoryWalk::default());
                let complaints = match found {
                    Ok(found) => differences(&manifest, &found, &comparison),
                    Err(error) => vec![error.to_string()],
                };
                told.extend(complaints.into_iter().map(|complaint| format!("{round}: {complaint}")));
                told.extend(mounted.forget("").err());
            }
            told
        },
    );
    assert_eq!(log.map(|log| kernel_complaints(&log)).unwrap_or_default(), Vec::<String>::new());
}

#[test]
fn fsck_finds_nothing_wrong() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::PeerOf("fsck.erofs", Versions::Since("1.9"))]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &images(&corpus),
        |image| image.name.clone(),
        |image| {
            let mounted = match Front::of_record(&corpus, image).map(KernelFront::served) {
                Ok(Ok(mounted)) => mounted,
                Ok(Err(reason)) => return vec![reason],
                Err(error) => return vec![error.to_string()],
            };
            let fsck = peer("fsck.erofs").expect("it is there");
            let output = Command::new(fsck)
                .arg(format!("--device={}", mounted.large_file().display()))
                .arg(mounted.virtual_file())
                .output()
                .expect("it runs");
            if output.status.success() {
                return Vec::new();
            }
            vec![String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()]
        },
    );
}
