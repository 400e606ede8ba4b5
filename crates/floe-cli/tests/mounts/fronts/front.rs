//! `floe mount -o front=kernel`: the kernel's EROFS in front.

use std::{collections::BTreeSet, fs, os::unix::process::CommandExt, process::Command, thread, time::Duration};

use floe_testkit::{
    check_rows,
    corpus::Corpus,
    keep_kernel_caches,
    skip::{self, Need},
};
use rustix::{
    mount::{UnmountFlags, unmount},
    process::Signal,
};

use crate::support::{
    front::{Scene, ready},
    program::{Place, Serving, floe, processes_with, run, told, umount, until},
};

fn scene() -> Scene {
    Scene::new(&[("small", 10), ("directory/large", 3 << 20), ("directory/deep/file", 5000)])
}

/// The number of FUSE mounts in the tree.
fn fuse_mounts_of(image: &std::path::Path) -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    table.lines().filter(|line| line.contains(" - fuse") && line.contains(image.to_str().expect("text"))).count()
}

#[test]
fn the_mount_table_names_floe_and_the_image() {
    if !ready() {
        return;
    }
    let scene = scene();
    let rows: [(&str, &[&str], &[&str]); 4] = [
        ("ro", &[" ro,nosuid,nodev,relatime "], &["noexec"]),
        ("noexec,nosymfollow", &["ro,nosuid,nodev,noexec,", "nosymfollow"], &[]),
        ("suid,dev", &[], &["nosuid", "nodev"]),
        ("noacl", &["noacl"], &[",acl"]),
    ];
    check_rows(
        &rows,
        |row| row.0.to_owned(),
        |(options, present, absent)| {
            let serving = scene.fronted(options);
            let line = serving.place.mount_line();
            let source = format!(" - erofs floe\\043{} ", scene.image.display());
            let mut complaints = scene.wrong(&serving.place.path);
            let missing = present.iter().copied().chain([source.as_str()]).filter(|word| !line.contains(word));
            complaints.extend(missing.map(|word| format!("{word} is not in {line}")));
            complaints
                .extend(absent.iter().filter(|word| line.contains(*word)).map(|word| format!("{word} is in {line}")));
            if fuse_mounts_of(&scene.image) != 0 {
                complaints.push("the hidden mount is in the tree".to_owned());
            }
            complaints
        },
    );
    let named = scene.fronted("fsname=any name/at all");
    assert!(
        named.place.mount_line().contains(" - erofs floe\\043any\\040name/at\\040all "),
        "{}",
        named.place.mount_line()
    );
}

#[test]
fn a_front_ends_however_it_is_unmounted() {
    if !ready() {
        return;
    }
    let scene = scene();
    type Way = (&'static str, fn(&Serving));
    let ways: [Way; 6] = [
        ("SIGTERM", |serving| serving.signal(Signal::TERM)),
        ("SIGINT", |serving| serving.signal(Signal::INT)),
        ("umount2", |serving| unmount(&serving.place.path, UnmountFlags::empty()).expect("an unmount")),
        ("umount2 lazily", |serving| unmount(&serving.place.path, UnmountFlags::DETACH).expect("an unmount")),
        ("floe umount", |serving| {
            assert_eq!(umount(&serving.place.path), (Some(0), String::new()));
        }),
        ("umount", |serving| {
            assert!(run(Command::new("umount").arg(&serving.place.path)).status.success());
        }),
    ];
    let is_possible = |(name, _): &&Way| *name != "SIGINT" || skip::ready(&[Need::Signal(Signal::INT)]);
    let rows: Vec<_> = ways
        .iter()
        .filter(is_possible)
        .flat_map(|way| ["ro", "sandbox=off", "auto_unmount"].map(|options| (way, options)))
        .collect();
    check_rows(
        &rows,
        |((name, _), options)| format!("{name}, {options}"),
        |((_, unmount), options)| {
            let mut serving = scene.fronted(options);
            let mut complaints = scene.wrong(&serving.place.path);
            serving.place.wait_until_unused();
            unmount(&serving);
            let (status, errors) = serving.end();
            if (status.code(), errors.as_str()) != (Some(0), "") {
                complaints.push(format!("it ends with {status}: {errors}"));
            }
            if serving.place.is_mounted() {
                complaints.push("it is still mounted".to_owned());
            }
            complaints
        },
    );
}

#[test]
fn a_busy_front_is_served_until_nobody_uses_it() {
    if !ready() {
        return;
    }
    let scene = scene();
    let mut serving = scene.fronted("ro");
    let file = fs::File::open(serving.place.file("directory/large")).expect("a file");
    let (code, errors) = told(&run(floe().arg("umount").arg(&serving.place.path)));
    assert!(code == Some(1) && errors.contains("is in use by"), "{code:?} {errors}");
    serving.signal(Signal::TERM);
    until("it is detached", || !serving.place.is_mounted());
    thread::sleep(Duration::from_millis(100));
    assert!(serving.is_running());
    let mut bytes = vec![0; 3 << 20];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).expect("it is served");
    assert!(bytes == scene.contents[std::path::Path::new("directory/large")]);
    drop(file);
    let (status, errors) = serving.end();
    assert_eq!(status.code(), Some(0));
    assert!(errors.contains("is in use by") && errors.contains("signal again"), "{errors}");
}

#[test]
fn status_shows_the_front_and_its_reason() {
    if !ready() {
        return;
    }
    let scene = scene();
    let corpus = Corpus::fixtures();
    let squashfs = corpus.materialise(&corpus.image("sqfs-cbase-gzip"));
    for (image, options, expected) in [
        (&scene.image, "front=kernel", "kernel (requested by an option)"),
        (&scene.image, "front=fuse", "fuse (requested by an option)"),
        (&scene.image, "front=auto", "kernel (the kernel supports it)"),
        (
            &scene.image,
            "front=auto,access=private",
            "fuse (the kernel's EROFS lets all users in, unlike private and allow_root)",
        ),
        (&squashfs.path, "front=auto", "kernel (the kernel supports it; sizes of directories differ from the image)"),
    ] {
        let serving = Serving::new(image, ["-o", options]);
        let output = run(floe().arg("status").arg(&serving.place.path));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.starts_with("front ")).unwrap_or_default();
        assert_eq!(line.split_once(' ').map(|(_, rest)| rest.trim()), Some(expected), "{options}: {text}");
        assert!(options.contains("kernel") == expected.starts_with("kernel (requested"), "{options}");
        assert_eq!(
            told(&run(floe().args(["tune"]).arg(&serving.place.path).arg("cache=8M"))),
            (Some(0), String::new())
        );
    }
}

/// The number of read requests that a mount has received.
fn read_requests(serving: &Serving) -> u64 {
    let output = run(floe().args(["status", "--json"]).arg(&serving.place.path));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report["requests"]["read"].as_u64().expect("a number")
}

#[test]
fn one_request_brings_many_small_files() {
    if !ready() {
        return;
    }
    let _kept = keep_kernel_caches();
    let scene = Scene::many(4000, 3000);
    let serving = scene.fronted("ro");
    let mut names = Vec::new();
    for directory in fs::read_dir(&serving.place.path).expect("a directory") {
        let directory = directory.expect("an entry").path();
        let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
        names.extend(entries.inspect(|path| assert_eq!(fs::metadata(path).expect("attributes").len(), 3000)));
    }
    assert_eq!(names.len(), 4000);
    let walk = read_requests(&serving);
    for name in &names {
        assert_eq!(fs::read(name).expect("data").len(), 3000);
    }
    let read = read_requests(&serving) - walk;
    eprintln!("{walk} requests for the attributes, {read} for the data of {} files", names.len());
    assert!(read < 1000, "{read} requests for the data of {} files", names.len());
}

#[test]
fn requests_and_stages_are_counted() {
    if !ready() {
        return;
    }
    let scene = scene();
    let serving = scene.fronted("ro");
    assert_eq!(scene.wrong(&serving.place.path), [""; 0]);
    let output = run(floe().args(["status", "--json"]).arg(&serving.place.path));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let count = |stage: &str| {
        let stages = report["latency"].as_array().expect("stages");
        stages.iter().find(|entry| entry["stage"] == stage).and_then(|entry| entry["count"].as_u64()).unwrap_or(0)
    };
    assert!(report["requests"]["read"].as_u64() > Some(0), "{report}");
    assert!(count("read") > 0 && count("decode") > 0 && count("reply") > 0, "{report}");
    assert!(report["work"]["decoded_bytes"].as_u64() >= Some(3 << 20), "{report}");
}

#[test]
fn status_lists_the_session_thread_of_each_cpu() {
    if !ready() {
        return;
    }
    let scene = scene();
    let serving = scene.fronted("ro");
    let output = run(floe().args(["status", "--json"]).arg(&serving.place.path));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let threads = report["threads"].as_array().expect("threads");
    let cpus_of = |name: &str| {
        let of_kind = threads.iter().filter(|thread| {
            let own = thread["name"].as_str().and_then(|own| own.strip_prefix(name));
            own.is_some_and(|number| number.parse() == Ok(thread["cpu"].as_u64().unwrap_or(u64::MAX)))
        });
        of_kind.map(|thread| thread["cpu"].as_u64()).collect::<BTreeSet<_>>()
    };
    if threads.iter().all(|thread| thread["name"] != "floe-fuse/dev") {
        return skip::skipped("the mount does not use io_uring");
    }
    assert!(!cpus_of("floe-fuse/").is_empty(), "{threads:?}");
    assert_eq!(cpus_of("floe-fuse/"), cpus_of("floe-dec/"), "{threads:?}");
}

#[test]
fn the_thread_that_reads_ahead_in_the_front_has_the_priority_of_decoders() {
    if !ready() {
        return;
    }
    let scene = scene();
    // Fields of proc(5), of which the second is the name: the 19th, or the 41st.
    let field = |stat: &str, number: usize| Some(stat.rsplit_once(") ")?.1.split(' ').nth(number - 3)?.to_owned());
    let nice_level_of = |stat: &str| field(stat, 19);
    let is_real_time = |stat: &str| field(stat, 41).as_deref() == Some("1");
    let own = fs::read_to_string("/proc/self/stat").ok().and_then(|stat| nice_level_of(&stat)).expect("it has one");
    for (options, nice_level) in [("ro", "-20"), ("priority=nice:5", "5"), ("priority=normal", own.as_str())] {
        let serving = scene.fronted(options);
        let is_scheduled = || {
            let keeper = serving.keeper().as_raw_nonzero();
            let tasks = fs::read_dir(format!("/proc/{keeper}/task")).expect("it runs").flatten();
            let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
            let of_mover: Vec<String> = stats.filter(|stat| stat.contains("(floe-front)")).collect();
            // While CPUs are short, the default is real-time.
            let is_right = |stat: &String| {
                nice_level_of(stat).as_deref() == Some(nice_level) || options == "ro" && is_real_time(stat)
            };
            of_mover.len() == 1 && of_mover.iter().all(is_right)
        };
        until("it is scheduled", is_scheduled);
    }
}

#[test]
fn a_daemon_and_mount_of_fstab_have_a_front() {
    if !ready() {
        return;
    }
    let scene = scene();
    let place = Place::new();
    let name = place.path.file_name().and_then(|name| name.to_str()).expect("text").to_owned();
    let daemon =
        |command: &mut Command| told(&run(command.arg(&scene.image).arg(&place.path).args(["-o", "front=kernel"])));
    let mut helper = floe();
    helper.arg0("/sbin/mount.fuse.floe");
    let mut mount = floe();
    mount.args(["mount", "--daemon"]);
    for command in [&mut mount, &mut helper] {
        assert_eq!(daemon(command), (Some(0), String::new()));
        assert!(place.mount_line().contains(" - erofs floe"), "{}", place.mount_line());
        let (code, errors) = told(&run(floe().arg("mount").arg(&scene.image).arg(&place.path)));
        assert!(code == Some(1) && errors.contains("is already mounted on"), "{code:?} {errors}");
        assert_eq!(umount(&place.path), (Some(0), String::new()));
        until("the program ends", || processes_with(&name).is_empty());
    }
}

/// A ring lasts as long as something refers to it, and with it the requests in it. The keeper must unmount after the end of its
/// program, for which these requests must have ended.
#[test]
fn a_keeper_has_no_ring_of_its_program() {
    if !ready() {
        return;
    }
    let scene = scene();
    let serving = scene.fronted("ro");
    let maps_of = |process| fs::read_to_string(format!("/proc/{process}/maps")).expect("its memory");
    if !maps_of(serving.pid.as_raw_nonzero()).contains("[io_uring]") {
        return skip::skipped("the mount does not use io_uring");
    }
    assert!(!maps_of(serving.keeper().as_raw_nonzero()).contains("[io_uring]"));
}

#[test]
fn users_without_the_right_to_mount_get_the_reason() {
    if !ready() {
        return;
    }
    let scene = scene();
    let place = Place::new();
    let mount = |options: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin", env!("CARGO_BIN_EXE_floe"), "mount", "-d"]);
        command.arg(&scene.image).arg(&place.path).args(["-o", options]);
        told(&run(&mut command))
    };
    let (code, errors) = mount("front=kernel");
    let expected = "floe: the kernel's EROFS cannot be mounted in front: it needs CAP_SYS_ADMIN outside of user \
                    namespaces: use front=fuse instead of front=kernel\n";
    assert_eq!((code, errors.as_str()), (Some(1), expected));
    assert!(!place.is_mounted());
}

#[test]
fn drop_in_names_have_a_front_when_asked() {
    if !ready() {
        return;
    }
    let scene = scene();
    for (options, kind) in [(&[][..], " - fuse"), (&["-o", "front=kernel"][..], " - erofs floe")] {
        let place = Place::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.arg0("erofsfuse").args(options).arg(&scene.image).arg(&place.path);
        assert_eq!(told(&run(&mut command)), (Some(0), String::new()));
        assert!(place.mount_line().contains(kind), "{}", place.mount_line());
        assert_eq!(umount(&place.path), (Some(0), String::new()));
    }
}
