//! Behind a front with kept metadata, the kernel reads plain data in the image itself, and decodes small files there.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt, chown},
};

use floe_testkit::{KernelCaches, check_rows, drop_kernel_caches, keep_kernel_caches};
use rustix::process::Signal;

use super::kept::Cache;
use crate::support::{
    front::{Scene, ready},
    program::{Serving, floe, run},
};

/// The lengths of the files: small and large ones, whole blocks and parts of a block.
const LENGTHS: [usize; 12] = [1, 100, 3000, 4000, 4095, 4096, 4097, 8192, 20_000, 131_072, 200_001, 3 << 20];

/// An image of files that are stored uncompressed.
fn plain_scene(options: &[&str]) -> Scene {
    let names: Vec<_> = (0..120).map(|number| (format!("{}/{number}", number % 7), LENGTHS[number % 12])).collect();
    let files: Vec<_> = names.iter().map(|(name, len)| (name.as_str(), *len)).collect();
    Scene::made(&files, options)
}

/// Whether the kernel reads plain data in the image, and the number of reads that Floe has answered.
fn told(serving: &Serving) -> (bool, u64) {
    let output = run(floe().args(["status", "--json"]).arg(&serving.place.path));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let reason = report["front"]["reason"].as_str().expect("a reason");
    (reason.contains("plain data"), report["requests"]["read"].as_u64().expect("a number"))
}

#[test]
fn plain_files_are_read_without_a_request() {
    if !ready() {
        return;
    }
    let rows: [(&[&str], u64); 4] = [
        (&[], 0),
        (&["--chunk", "4096"], 0),
        // Of a compressed image, Floe reads the large files alone.
        (&["--compress", "lz4"], 10_000),
        (&["--format", "squashfs", "--compress", "none"], 10_000),
    ];
    let _kept = keep_kernel_caches();
    check_rows(
        &rows,
        |(options, _)| format!("{options:?}"),
        |(options, requests_max)| {
            let (scene, cache) = (plain_scene(options), Cache::new());
            cache.keep_with(&scene.image, "");
            let serving = cache.mount(&scene.image);
            let mut wrong = scene.wrong(&serving.place.path);
            let (is_plain, requests) = told(&serving);
            if requests > *requests_max || *requests_max == 0 && !is_plain {
                wrong.push(format!("{requests} requests, {is_plain}"));
            }
            wrong
        },
    );
}

#[test]
fn small_files_are_read_without_a_request() {
    if !ready() {
        return;
    }
    let rows: [(&[&str], &str, bool); 7] = [
        (&["--compress", "lz4"], "", true),
        (&["--compress", "lz4", "-C65536"], "", true),
        (&["--compress", "zstd", "-C65536"], "", true),
        // Floe is faster with blocks that files share, and nobody has measured others than LZ4 and Zstandard.
        (&["--compress", "zstd", "-C65536", "--fragments", "tails"], "", false),
        (&["--compress", "lz4"], "front-data=floe", false),
        (&["--compress", "deflate"], "", false),
        (&["--format", "squashfs", "--compress", "zstd"], "", false),
    ];
    let _kept = keep_kernel_caches();
    check_rows(
        &rows,
        |(mkfs_options, options, _)| format!("{mkfs_options:?} {options}"),
        |(mkfs_options, options, is_decoded)| {
            let names: Vec<_> =
                (0..150).map(|number| (format!("{}/{number}", number % 7), 5000 + number * 300)).collect();
            let files: Vec<_> = names.iter().map(|(name, len)| (name.as_str(), *len)).collect();
            let (scene, cache) = (Scene::made(&files, mkfs_options), Cache::new());
            cache.keep_with(&scene.image, options);
            let serving = cache.mount_with(&scene.image, options);
            let mut wrong = scene.wrong(&serving.place.path);
            let (_, requests) = told(&serving);
            if *is_decoded != (requests == 0) {
                wrong.push(format!("{requests} requests"));
            }
            wrong
        },
    );
}

#[test]
fn floe_reads_what_others_could_change_and_what_is_recorded() {
    if !ready() {
        return;
    }
    type Change = fn(&Scene);
    let rows: [(&str, &str, Change, bool); 7] = [
        ("of root", "", |_| {}, true),
        ("everyone may write", "", |scene| set_mode(scene, 0o646), false),
        ("a group may write", "", |scene| set_mode(scene, 0o664), false),
        ("of another user", "", |scene| chown(&scene.image, Some(12_345), None).expect("given away"), false),
        ("to be verified", "require-verified", |_| {}, false),
        ("Floe is to read", "front-data=floe", |_| {}, false),
        ("a launch is recorded", "profile=learn", |_| {}, false),
    ];
    check_rows(
        &rows,
        |row| row.0.to_owned(),
        |(_, options, change, is_plain)| {
            let scene = plain_scene(&[]);
            change(&scene);
            let cache = Cache::new();
            cache.keep_with(&scene.image, options);
            let serving = cache.mount_with(&scene.image, options);
            let mut wrong = scene.wrong(&serving.place.path);
            if told(&serving).0 != *is_plain {
                wrong.push("the kernel reads the image or not".to_owned());
            }
            wrong
        },
    );
}

fn set_mode(scene: &Scene, mode: u32) {
    fs::set_permissions(&scene.image, Permissions::from_mode(mode)).expect("ours");
}

#[test]
fn an_image_that_is_replaced_or_truncated_gives_old_bytes_zeros_or_errors() {
    if !ready() {
        return;
    }
    let scene = plain_scene(&[]);
    let cache = Cache::new();
    cache.keep_with(&scene.image, "");
    let mut serving = cache.mount(&scene.image);
    assert!(told(&serving).0);
    let opened = File::options().write(true).open(&scene.image).expect("ours");
    let len = opened.metadata().expect("there").len();
    fs::remove_file(&scene.image).expect("ours");
    fs::write(&scene.image, "another one").expect("ours");
    if !drop_kernel_caches(KernelCaches::All) {
        return;
    }
    assert_eq!(scene.wrong(&serving.place.path), Vec::<String>::new());
    opened.set_len(len / 4).expect("shortened");
    if !drop_kernel_caches(KernelCaches::All) {
        return;
    }
    let mut lost = 0;
    for (name, expected) in &scene.contents {
        let Ok(found) = fs::read(serving.place.path.join(name)) else {
            lost += 1;
            continue;
        };
        assert_eq!(found.len(), expected.len(), "{name:?}");
        lost += usize::from(found != *expected);
        let same = found.iter().zip(expected).take_while(|(found, expected)| found == expected).count();
        assert!(found[same..].iter().all(|byte| *byte == 0), "{name:?} from byte {same} on");
    }
    assert!(lost > 0);
    serving.signal(Signal::TERM);
    assert_eq!(serving.end().0.code(), Some(0));
    assert!(!serving.place.is_mounted());
}
