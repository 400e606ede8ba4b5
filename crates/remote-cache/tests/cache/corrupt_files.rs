//! Corrupt cache files never give wrong bytes.

use std::{
    env,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
    time::Duration,
};

use floe_testkit::{Random, run_bounded};

use crate::scene::{Kind, Object, Scene, Server, number_from, open, read_all, read_parts};

/// The number of corrupt files for each kind of verification, without `FLOE_CORRUPT_FILES`.
const CASES: usize = 400;

/// The memory limit for all cases, in bytes.
const RESIDENT_BYTES_MAX: u64 = 160 << 20;

/// The time limit for all cases, on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(900);

const CHILD: &str = "FLOE_REMOTE_CACHE_CORRUPT";

/// Corrupts a file of the cache in one of the ways in which files become corrupt.
fn corrupt(path: &Path, random: &mut Random) {
    let Ok(file) = File::options().read(true).write(true).open(path) else { return };
    let len = file.metadata().expect("a length").len();
    let at = random.below(len.max(1));
    let noise = random.noise(1 + random.clone().below(200) as usize);
    match random.below(9) {
        0 => file.set_len(at).expect("cut"),
        1 => file.set_len(1 << 40).or_else(|_| file.set_len(1 << 30)).expect("longer"),
        2 => file.write_all_at(&vec![0; 4096], at / 4096 * 4096).expect("a page of zeros"),
        3 => drop(fs::remove_file(path)),
        4 => {
            // Copies an entry to another position.
            let mut entry = [0; 64];
            let _ = file.read_at(&mut entry, random.below(len.max(64) / 64) * 64);
            file.write_all_at(&entry, at / 64 * 64).expect("written");
        }
        5 | 6 => {
            let mut byte = [0];
            let _ = file.read_at(&mut byte, at);
            file.write_all_at(&[byte[0] ^ 1 << random.below(8)], at).expect("a bit");
        }
        _ => file.write_all_at(&noise, at).expect("noise"),
    }
}

#[test]
fn wrong_files_never_give_a_wrong_byte() {
    if env::var_os(CHILD).is_none() {
        let mut command = Command::new(env::current_exe().expect("this program"));
        let name = "corrupt_files::wrong_files_never_give_a_wrong_byte";
        command.args(["--exact", name, "--test-threads=1"]).env(CHILD, "1");
        let run = run_bounded(&mut command, TIME_MAX).expect("it runs");
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "{}\n{said}\n{}", run.status, run.stderr);
        assert!(run.resident_bytes_max < RESIDENT_BYTES_MAX, "{} bytes", run.resident_bytes_max);
        return;
    }
    let cases = number_from("FLOE_CORRUPT_FILES", CASES) as u64;
    for kind in Kind::ALL {
        let object = Object::new(kind, 300_000, 51);
        let (scene, server) = (Scene::new(), Server::of(&object));
        let mut corrupt_chunks = 0;
        for seed in 0..cases {
            let mut random = Random::new(seed);
            let boot = if random.below(3) == 0 { format!("boot {seed}") } else { "first boot".to_owned() };
            let cache = scene.cache_of(1 << 30, &boot);
            let source = open(&cache, &object, &server).expect("it opens");
            let (_, errors) = read_parts(&source, object.data(), &mut random, 2);
            assert!(errors.is_empty(), "{errors:?}");
            corrupt_chunks += source.counts().corrupt_chunks;
            drop(source);
            let files = ["map", "data", "map", "data", "usage", "about"];
            let directory = scene.object_directory(&object.key);
            corrupt(&directory.join(files[random.below(files.len() as u64) as usize]), &mut random);
            if random.below(8) == 0 {
                corrupt(&scene.directory.path().join("v2/state"), &mut random);
            }
            if random.below(64) == 0 {
                cache.list();
                cache.check(&object.key.id()).ok();
                cache.prune(1 << 30).expect("pruned");
            }
        }
        let source = open(&scene.cache(), &object, &server).expect("it opens");
        assert!(read_all(&source).expect("all of it") == object.data(), "{kind:?}");
        assert!(corrupt_chunks > cases / 50, "{kind:?}: {corrupt_chunks} chunks were found to be wrong");
    }
}
