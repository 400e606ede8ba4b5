//! Images of one service beside one whose server falls silent, a corrupt one, and one that is truncated while it is mounted.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use floe_testkit::skip::{Need, ready};

use crate::support::{
    front,
    plain_server::{Pages, PlainServer},
    program::{Place, floe, run, until},
    service::Service,
};

/// The number of sound images.
const SOUND_COUNT: usize = 17;

/// The files of each image, and their size in bytes.
const FILES: usize = 8;
const FILE_BYTES: usize = 512 << 10;

/// The threads that read from the silent server, and from each of the other two.
const READERS: usize = 8;

/// The content of a file: lines with their numbers, which compress, but are all different.
fn content(image: &str, file: usize) -> Vec<u8> {
    let mut content = Vec::with_capacity(FILE_BYTES + 64);
    let mut line = 0_u64;
    while content.len() < FILE_BYTES {
        let mixed = line.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(21);
        content.extend_from_slice(format!("{image} {file} {line} {mixed:x}\n").as_bytes());
        line += 1;
    }
    content.truncate(FILE_BYTES);
    content
}

fn image(folder: &Path, name: &str, format: &str) -> PathBuf {
    let (tree, image) = (folder.join(format!("{name}.tree")), folder.join(name));
    fs::create_dir(&tree).expect("ours");
    for file in 0..FILES {
        fs::write(tree.join(file.to_string()), content(name, file)).expect("ours");
    }
    let built = run(floe().args(["mkfs", "--quiet", "--compress", "lz4", "--format", format]).arg(&image).arg(&tree));
    assert!(built.status.success(), "{built:?}");
    fs::remove_dir_all(&tree).expect("ours");
    image
}

/// Changes a byte of each block of 4 KiB in the middle half of an image, which is data.
fn corrupt(image: &Path) {
    let file = File::options().read(true).write(true).open(image).expect("ours");
    let len = file.metadata().expect("ours").len();
    for at in (len / 4..len * 3 / 4).step_by(4096) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("ours");
        file.write_all_at(&[!byte[0]], at).expect("ours");
    }
}

#[test]
fn images_beside_faulty_ones_are_read_completely() {
    if !ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    let mut service = Service::start_with(&[("FLOE_TEST_KEEP_AFTER_MS", "100")]);
    let fronts = ["front=fuse", if front::ready() { "front=kernel" } else { "front=fuse" }];
    let sound: Vec<(String, Place)> = (0..SOUND_COUNT)
        .map(|number| {
            let name = format!("sound-{number}");
            let image = image(folder, &name, ["erofs", "squashfs"][number % 2]);
            let options = format!("cache-directory={},{}", folder.join("cache").display(), fronts[number / 2 % 2]);
            let place = service.mount(&image, &["-o", &options]);
            (name, place)
        })
        .collect();
    let bytes = fs::read(image(folder, "silent", "erofs")).expect("ours");
    let server = PlainServer::of(Pages::from([("/image".to_owned(), ("application/octet-stream", bytes))]));
    let url = format!("http://127.0.0.1:{}/image", server.port);
    let silent = service
        .mount(Path::new(&url), &["--outage", "wait:10m", "--cache-size", "0", "-o", "front=fuse,prefetch=none"]);
    let corrupted = image(folder, "corrupt", "squashfs");
    corrupt(&corrupted);
    let truncated = image(folder, "truncated", "erofs");
    let faulty = [&corrupted, &truncated].map(|image| service.mount(image, &["-o", "front=fuse"]));
    let len = fs::metadata(&truncated).expect("ours").len();
    File::options().write(true).open(&truncated).and_then(|file| file.set_len(len / 2)).expect("ours");
    let domain = service.domain();

    let names: Vec<PathBuf> = (0..READERS).map(|reader| silent.file(&(reader % FILES).to_string())).collect();
    let files: Vec<File> = names.iter().map(|name| File::open(name).expect("it is there")).collect();
    server.fall_silent_after(0);
    let stuck: Vec<_> = files.into_iter().map(|file| thread::spawn(move || file.read_at(&mut [0; 4096], 0))).collect();
    until("a reader waits for the server", || server.unanswered() > 0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (number, place) in faulty.iter().enumerate().flat_map(|faulty| [faulty; READERS]) {
            let is_over = &is_over;
            scope.spawn(move || {
                let mut round = number;
                while !is_over.load(Relaxed) {
                    // Content, or an error.
                    let _ = fs::read(place.file(&(round % FILES).to_string()));
                    round += 1;
                }
            });
        }
        let readers: Vec<_> = sound
            .iter()
            .map(|(name, place)| {
                scope.spawn(move || {
                    (0..FILES).find(|file| {
                        fs::read(place.file(&file.to_string())).ok().as_ref() != Some(&content(name, *file))
                    })
                })
            })
            .collect();
        let wrong: Vec<_> = readers
            .into_iter()
            .zip(&sound)
            .filter_map(|(reader, (name, _))| Some((name, reader.join().expect("no panic")?)))
            .collect();
        is_over.store(true, Relaxed);
        assert_eq!(wrong, Vec::new());
    });
    // Some have found their bytes in what came with the first ones.
    let waiting: Vec<_> = stuck.into_iter().filter(|reader| !reader.is_finished()).collect();
    assert!(!waiting.is_empty(), "nobody waited for it");
    assert_eq!(service.domain(), domain, "{}", service.messages());
    for place in sound.iter().map(|(_, place)| place).chain(&faulty) {
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
    // Its end aborts the connection.
    drop(service);
    assert!(waiting.into_iter().all(|reader| reader.join().expect("no panic").is_err()));
}
