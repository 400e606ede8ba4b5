//! The references agree: kernel mounts show what the manifests record.

use floe_testkit::{
    KernelMount, check_rows,
    corpus::{Corpus, Format},
    manifest::{Comparison, differences},
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

#[test]
fn kernel_mounts_match_the_manifests() {
    let corpus = Corpus::locate_or_fixtures();
    for (format, need) in [(Format::Erofs, Need::KernelErofs), (Format::Squashfs, Need::KernelSquashfs)] {
        if !skip::ready(&[need]) {
            continue;
        }
        let images = corpus.sample().into_iter().filter(|image| image.format == format && image.kernel_is_truth());
        // The kernel needs half a minute for huge files; other tests compare those with Floe's own mount.
        let images: Vec<_> = images.filter(|image| !image.huge).collect();
        check_rows(
            &images,
            |image| image.name.clone(),
            |image| {
                let mount = match KernelMount::new(&corpus.materialise(image)) {
                    Ok(mount) => mount,
                    Err(refusal) => return vec![refusal],
                };
                let shown = walk::directory(&mount.path(), DirectoryWalk::default()).expect("walked");
                let comparison = Comparison { xattrs_are_free: image.xattrs_from.is_some(), ..Comparison::default() };
                differences(&corpus.manifest(image), &shown, &comparison)
            },
        );
    }
}
