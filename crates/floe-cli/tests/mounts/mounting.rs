//! `floe mount` and `floe umount`, run with the built program.

use std::{
    fs,
    os::{unix::fs::FileExt, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use floe_testkit::skip::{self, Need};
use rustix::process::Signal;

use crate::support::program::{
    Place, Serving, demo, floe, processes_with, run, run_with_input, told, umount, until, within,
};

const FILE: &str = "README.txt";

fn ready() -> bool {
    skip::ready(&[Need::Root, Need::Fuse])
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

const NOTHING: [&str; 0] = [];

#[test]
fn signals_unmount() {
    if !ready() {
        return;
    }
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        if !skip::ready(&[Need::Signal(signal)]) {
            continue;
        }
        let mut serving = Serving::new(&demo(), NOTHING);
        let expected = format!("{} (EROFS) is mounted on {}\n", demo().display(), serving.place.path.display());
        assert_eq!(serving.ready, expected);
        assert!(!fs::read(serving.place.file(FILE)).expect("data").is_empty());
        serving.place.wait_until_unused();
        serving.signal(signal);
        let (status, errors) = serving.end();
        assert_eq!((status.code(), errors.as_str()), (Some(0), ""), "{signal:?}");
        assert!(!serving.place.is_mounted());
    }
}

#[test]
fn signals_that_were_ignored_from_the_start_stay_ignored() {
    if !ready() {
        return;
    }
    let place = Place::new();
    // As with nohup, or a background process of a shell without job control.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP INT; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_floe"), "mount"]);
    command.arg(demo()).arg(&place.path);
    let mut serving = Serving::start(command, place);
    for signal in [Signal::HUP, Signal::INT] {
        serving.signal(signal);
        thread::sleep(Duration::from_millis(300));
        assert!(serving.place.is_mounted() && serving.is_running(), "{signal:?}");
    }
    serving.signal(Signal::TERM);
    assert_eq!(serving.end().0.code(), Some(0));
    assert!(!serving.place.is_mounted());
}

#[test]
fn mount_names_the_missing_link() {
    // As with mount.fuse3, which mount(8) runs for types without a helper.
    let (code, errors) = told(&run(floe().args(["/images/a.erofs", "/mnt", "-o", "rw,dev,suid"])));
    let expected = "floe: /images/a.erofs is not a command: run floe mount /images/a.erofs /mnt, or, for mount -t fuse.floe, \
                    create the link that mount looks for: ln -s ";
    assert!(code == Some(2) && errors.starts_with(expected), "{code:?}: {errors}");
    assert!(errors.trim_end().ends_with("floe /sbin/mount.fuse.floe") && errors.lines().count() == 1, "{errors}");
}

#[test]
fn an_unmount_from_outside_ends_the_program() {
    if !ready() {
        return;
    }
    let mut serving = Serving::new(&demo(), NOTHING);
    rustix::mount::unmount(&serving.place.path, rustix::mount::UnmountFlags::empty()).expect("an unmount");
    let (status, errors) = serving.end();
    assert_eq!((status.code(), errors.as_str()), (Some(0), ""));
}

#[test]
fn an_ended_mount_never_unmounts_its_successor() {
    if !ready() {
        return;
    }
    let place = Place::new();
    let name = place.path.file_name().expect("a name").to_str().expect("text").to_owned();
    for _ in 0..5 {
        for _ in 0..2 {
            let mount = run(floe().arg("mount").arg("--daemon").arg(demo()).arg(&place.path));
            assert_eq!(told(&mount), (Some(0), String::new()));
            // A resting session thread notices the unmount late. The next mount gets the device number that becomes free here.
            assert!(fs::symlink_metadata(place.file(FILE)).is_ok());
            rustix::mount::unmount(&place.path, rustix::mount::UnmountFlags::empty()).expect("an unmount");
        }
        let mount = run(floe().arg("mount").arg("--daemon").arg(demo()).arg(&place.path));
        assert_eq!(told(&mount), (Some(0), String::new()));
        until("the others have ended", || processes_with(&name).len() == 1);
        assert!(place.is_mounted());
        assert_eq!(umount(&place.path), (Some(0), String::new()));
    }
}

#[test]
fn a_signal_right_after_an_unmount_leaves_a_later_mount_alone() {
    if !ready() {
        return;
    }
    for _ in 0..10 {
        let mut serving = Serving::new(&demo(), NOTHING);
        let path = &serving.place.path;
        assert!(fs::symlink_metadata(path.join(FILE)).is_ok());
        rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()).expect("an unmount");
        // This mount gets the device number that has just become free.
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("successor", path, "tmpfs", flags, None).expect("a mount");
        serving.signal(Signal::TERM);
        assert_eq!(serving.end().0.code(), Some(0));
        assert!(serving.place.mount_line().contains("successor"));
    }
}

#[test]
fn an_aborted_connection_leaves_no_dead_mount() {
    if !ready() {
        return;
    }
    let mut serving = Serving::new(&demo(), NOTHING);
    let device = rustix::fs::stat(&serving.place.path).expect("a mount").st_dev;
    let control = tempfile::tempdir().expect("a scratch folder");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("fusectl", control.path(), "fusectl", flags, None).expect("FUSE's control files");
    let aborted = fs::write(control.path().join(rustix::fs::minor(device).to_string()).join("abort"), "1");
    rustix::mount::unmount(control.path(), rustix::mount::UnmountFlags::DETACH).expect("an unmount");
    aborted.expect("the kernel accepts the abort");
    let (status, errors) = serving.end();
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(errors.contains("lost the connection to the kernel"), "{errors}");
    assert!(!serving.place.is_mounted());
}

#[test]
fn a_daemon_returns_when_the_mount_works() {
    if !ready() {
        return;
    }
    for image in [demo(), PathBuf::from("/dev/stdin")] {
        check_daemon(&image);
    }
}

/// Mounts an image in the background, with the example on standard input.
fn check_daemon(image: &Path) {
    let place = Place::new();
    // Relative paths refer to the working directory at the start.
    let (parent, name) = (place.path.parent().expect("a parent"), place.path.file_name().expect("a name"));
    let mut command = floe();
    command.current_dir(parent).arg("mount").arg(image).arg(name).arg("--daemon");
    let output = run_with_input(&mut command, fs::File::open(demo()).expect("the example").into());
    assert_eq!(told(&output), (Some(0), String::new()));
    assert!(String::from_utf8_lossy(&output.stdout).contains("is mounted on"), "{output:?}");
    assert!(!fs::read(place.file(FILE)).expect("data").is_empty());
    let name = name.to_str().expect("text").to_owned();
    let pids = processes_with(&name);
    assert_eq!(pids.len(), 1, "one process serves");
    assert_eq!(fs::read_link(format!("/proc/{}/cwd", pids[0])).expect("its directory"), Path::new("/"));
    for descriptor in 0..3 {
        let target = fs::read_link(format!("/proc/{}/fd/{descriptor}", pids[0])).expect("its descriptors");
        assert_eq!(target, Path::new("/dev/null"), "{descriptor}");
    }
    assert_eq!(umount(&place.path), (Some(0), String::new()));
    assert!(!place.is_mounted());
    until("the program ends", || processes_with(&name).is_empty());
}

#[test]
fn mistakes_are_reported_in_one_line() {
    if !ready() {
        return;
    }
    let place = Place::new();
    let folder = tempfile::tempdir().expect("a directory");
    let no_image = folder.path().join("text");
    fs::write(&no_image, "x".repeat(5000)).expect("a file");
    let mounted = Serving::new(&demo(), NOTHING);
    let (demo, at) = (demo(), place.path.clone());
    let missing = PathBuf::from("/nonexistent");
    for (image, directory, options, code, expected) in [
        (&missing, &at, "ro", 1, "/nonexistent: No such file or directory"),
        (&no_image, &at, "ro", 3, "not an EROFS or SquashFS image"),
        (&folder.path().to_owned(), &at, "ro", 1, "directory"),
        (&demo, &missing, "ro", 1, "cannot mount on /nonexistent: No such file or directory"),
        (&demo, &no_image, "ro", 1, "is not a directory"),
        (&demo, &mounted.place.path, "ro", 1, "is already mounted on"),
        (&demo, &PathBuf::from("/dev/fd/99"), "ro", 1, "/dev/fd/99 is not an open descriptor of /dev/fuse"),
        (&demo, &at, "rw", 2, "images are read-only"),
        (&demo, &mounted.place.path, "remount,ro", 2, "cannot be remounted: change options with floe tune"),
        (&demo, &at, "colour=red", 2, "no such option: -o colour"),
        (&demo, &at, "context=x,bogus", 2, "no such option: -o bogus"),
        (&demo, &at, "offset=512", 3, "no EROFS or SquashFS image at byte 512"),
    ] {
        for daemon in [None, Some("--daemon")] {
            let mut command = floe();
            let output = run(command.arg("mount").arg(image).arg(directory).args(["-o", options]).args(daemon));
            let (found, errors) = told(&output);
            let case = format!("{} {} {options} {daemon:?}: {errors}", image.display(), directory.display());
            assert_eq!(found, Some(code), "{case}");
            assert!(errors.contains(expected) && errors.lines().count() == 1, "{case}");
            assert!(!place.is_mounted(), "{case}");
        }
    }
    let (code, errors) = told(&run(floe().arg("mount").arg(&demo)));
    assert_eq!(code, Some(2), "{errors}");
}

#[test]
fn options_reach_the_mount() {
    if !ready() {
        return;
    }
    let options =
        "noauto,nofail,x-systemd.automount,nosuid,nodev,noexec,access=private,read-ahead=512k,uid=12,gid=34,threads=3";
    let serving = Serving::new(&demo(), ["-o", options, "-ocache=8m"]);
    let line = serving.place.mount_line();
    for word in [" ro,nosuid,nodev,noexec", " fuse.floe ", "user_id=0", "default_permissions"] {
        assert!(line.contains(word), "{word} in {line}");
    }
    assert!(line.contains(demo().to_str().expect("text")), "{line}");
    assert!(!line.contains("allow_other"), "{line}");
    use std::os::unix::fs::MetadataExt;
    let stat = fs::metadata(serving.place.file(FILE)).expect("stat");
    assert_eq!((stat.uid(), stat.gid()), (12, 34));
    let device = line.split(' ').nth(2).expect("a device");
    let read_ahead = fs::read_to_string(format!("/sys/class/bdi/{device}/read_ahead_kb")).expect("sysfs");
    assert_eq!(read_ahead.trim(), "512");
    let plain = Serving::new(&demo(), NOTHING);
    let line = plain.place.mount_line();
    assert!(line.contains("allow_other") && line.contains(" ro,nosuid,nodev,relatime"), "{line}");
    let asked = Serving::new(&demo(), ["-o", "suid,dev,subtype=kind,fsname=name"]);
    let line = asked.place.mount_line();
    assert!(line.contains(" fuse.kind name ") && !line.contains("nosuid") && !line.contains("nodev"), "{line}");
}

#[test]
fn a_busy_mount_is_detached_and_served_until_nobody_uses_it() {
    if !ready() {
        return;
    }
    let mut serving = Serving::new(&demo(), NOTHING);
    let file = fs::File::open(serving.place.file(FILE)).expect("a file");
    let output = run(floe().arg("umount").arg(&serving.place.path));
    let (code, errors) = told(&output);
    assert_eq!(code, Some(1));
    let who = format!("(process {}, open file): end these processes, or run floe umount --lazy", std::process::id());
    assert!(errors.contains("is in use by") && errors.contains(&who), "{errors}");
    serving.signal(Signal::TERM);
    until("it is detached", || !serving.place.is_mounted());
    thread::sleep(Duration::from_millis(100));
    assert!(serving.is_running());
    let mut bytes = [0; 16];
    file.read_exact_at(&mut bytes, 0).expect("it is served");
    drop(file);
    let (status, errors) = serving.end();
    assert_eq!(status.code(), Some(0));
    assert!(errors.contains("is in use by") && errors.contains("signal again"), "{errors}");
}

#[test]
fn a_second_signal_ends_a_mount_at_once() {
    if !ready() {
        return;
    }
    let mut serving = Serving::new(&demo(), NOTHING);
    let file = fs::File::open(serving.place.file("guide/reading.txt")).expect("a file");
    serving.signal(Signal::TERM);
    until("it is detached", || !serving.place.is_mounted());
    serving.signal(Signal::TERM);
    assert_eq!(serving.end().0.code(), Some(1));
    assert_eq!(errno(within(move || file.read_at(&mut [0; 16], 0))), Some(libc::ENOTCONN));
}

#[test]
fn a_lazy_unmount_needs_no_permission_of_the_users() {
    if !ready() {
        return;
    }
    let mut serving = Serving::new(&demo(), NOTHING);
    let file = fs::File::open(serving.place.file(FILE)).expect("a file");
    assert_eq!(told(&run(floe().args(["umount", "--lazy"]).arg(&serving.place.path))), (Some(0), String::new()));
    assert!(!serving.place.is_mounted() && serving.is_running());
    drop(file);
    assert_eq!(serving.end().0.code(), Some(0));
}

#[test]
fn clients_of_a_killed_program_get_errors() {
    if !ready() {
        return;
    }
    let mut serving = Serving::new(&demo(), NOTHING);
    let file = fs::File::open(serving.place.file("guide/reading.txt")).expect("a file");
    let place = serving.place.path.clone();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let place = place.clone();
            thread::spawn(move || {
                // Unlike names and data, statistics are never cached.
                loop {
                    if let Err(error) = rustix::fs::statvfs(&place) {
                        return error.raw_os_error();
                    }
                }
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(100));
    serving.signal(Signal::KILL);
    for client in clients {
        let error = within(move || client.join().expect("no panic"));
        // Over io_uring, a request that the program has not taken yet is cancelled.
        assert!(matches!(error, libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED), "{error}");
    }
    assert_eq!(errno(within(move || file.read_at(&mut [0; 16], 0))), Some(libc::ENOTCONN));
    serving.end();
    let output = run(floe().arg("mount").arg(demo()).arg(&place));
    let (code, errors) = told(&output);
    let expected = format!(
        "floe: a dead mount (transport endpoint not connected) is on {place}: run floe umount {place}\n",
        place = place.display()
    );
    assert_eq!((code, errors), (Some(1), expected));
    assert_eq!(umount(&place), (Some(0), String::new()));
    assert!(!serving.place.is_mounted());
}

#[test]
fn failed_unmounts_are_reported() {
    if !ready() {
        return;
    }
    let place = Place::new();
    let at = place.path.display();
    for (directory, expected) in [
        (place.path.as_path(), format!("floe: {at} is not a mountpoint\n")),
        (
            Path::new("/nonexistent"),
            "floe: cannot unmount /nonexistent: No such file or directory (os error 2)\n".into(),
        ),
        (Path::new("/proc"), "floe: /proc is a mount of proc, not one of Floe: run umount /proc\n".into()),
    ] {
        assert_eq!(told(&run(floe().arg("umount").arg(directory))), (Some(1), expected));
    }
    let (first, second) = (Serving::new(&demo(), NOTHING), Serving::new(&demo(), NOTHING));
    let directories = [&first.place.path, &place.path, &second.place.path];
    let (code, errors) = told(&run(floe().arg("umount").args(directories)));
    assert_eq!((code, errors), (Some(1), format!("floe: {at} is not a mountpoint\n")));
    assert!(!first.place.is_mounted() && !second.place.is_mounted(), "the others are unmounted");
}

#[test]
fn mount_calls_the_helper() {
    if !ready() {
        return;
    }
    let place = Place::new();
    let helper = || {
        let mut command = floe();
        command.arg0("/sbin/mount.fuse.floe");
        command
    };
    let options = "rw,nosuid,nodev,user=somebody,x-systemd.requires=/a";
    let output = run(helper().arg(demo()).arg(&place.path).args(["-v", "-n", "-t", "fuse.floe", "-o", options]));
    assert_eq!(told(&output), (Some(0), String::new()));
    assert!(String::from_utf8_lossy(&output.stdout).contains("is mounted on"), "{output:?}");
    assert!(place.mount_line().contains(" ro,nosuid,nodev"), "{}", place.mount_line());
    assert!(!fs::read(place.file(FILE)).expect("data").is_empty());
    assert_eq!(umount(&place.path).0, Some(0));
    let output = run(helper().arg(demo()).arg(&place.path));
    assert_eq!((told(&output), output.stdout), ((Some(0), String::new()), Vec::new()), "quiet without -v, as mount is");
    assert_eq!(umount(&place.path).0, Some(0));
    for (arguments, code) in [
        (vec!["/nonexistent", place.path.to_str().expect("text")], 32),
        (vec![demo().to_str().expect("text"), place.path.to_str().expect("text"), "-o", "bogus"], 1),
        (vec![demo().to_str().expect("text"), place.path.to_str().expect("text"), "-s", "-o", "remount,ro"], 1),
        (vec![demo().to_str().expect("text"), place.path.to_str().expect("text"), "-f", "-s", "-o", "bogus"], 0),
        (vec![], 1),
    ] {
        let (found, errors) = told(&run(helper().args(&arguments)));
        assert_eq!(found, Some(code), "{arguments:?}: {errors}");
        assert!(!place.is_mounted());
    }
}

#[test]
fn an_image_that_is_truncated_gives_eio() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let image = folder.path().join("image");
    fs::copy(demo(), &image).expect("a copy");
    let mut serving = Serving::new(&image, ["-o", "prefetch=none,fetch-around=off"]);
    let walk = |directory: &str| fs::read_dir(serving.place.file(directory)).expect("a directory").count();
    let entries = walk("guide") + walk("maps") + walk("records");
    fs::File::options().write(true).open(&image).expect("the image").set_len(4096).expect("it is truncated");
    let mut failed = 0;
    for directory in ["guide", "maps", "records"] {
        for entry in fs::read_dir(serving.place.file(directory)).expect("it is cached") {
            let path = entry.expect("it is cached").path();
            if let Err(error) = within(move || fs::read(path)) {
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0, "of {entries} entries");
    assert!(serving.is_running());
    serving.signal(Signal::TERM);
    let (status, errors) = serving.end();
    assert_eq!(status.code(), Some(0));
    assert!(errors.contains("cannot read the image"), "{errors}");
}

#[test]
fn few_descriptors_are_enough_or_told() {
    if !ready() {
        return;
    }
    for limit in [4, 5, 6, 7, 8, 10, 12, 16, 18, 24] {
        let place = Place::new();
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -n {limit}; exec \"$0\" \"$@\"")).arg(env!("CARGO_BIN_EXE_floe"));
        let output = run(command.arg("mount").arg(demo()).arg(&place.path).arg("--daemon"));
        let (code, errors) = told(&output);
        if code == Some(0) {
            let path = place.path.clone();
            let read = within(move || fs::read(path.join(FILE)));
            assert!(!read.expect("data").is_empty(), "{limit}");
            let (status, names) = (run(Command::new("find").arg(&place.path)), place.path.display().to_string());
            assert!(status.status.success() && String::from_utf8_lossy(&status.stdout).contains(&names));
            assert_eq!(umount(&place.path).0, Some(0), "{limit}");
        } else {
            assert!(errors.contains("Too many open files") || limit < 5, "{limit}: {code:?} {errors}");
            assert!(limit < 18, "18 descriptors are enough: {errors}");
            assert!(!place.is_mounted(), "{limit}");
        }
    }
}

#[test]
fn an_unmount_during_reads_ends_them() {
    if !ready() {
        return;
    }
    let mut serving = Serving::new(&demo(), NOTHING);
    let readers: Vec<_> = ["README.txt", "guide/reading.txt", "guide", "records"]
        .into_iter()
        .map(|name| {
            let path = serving.place.file(name);
            thread::spawn(move || {
                let look = || if path.is_dir() { fs::read_dir(&path).map(drop) } else { fs::read(&path).map(drop) };
                let mut last = look();
                while last.is_ok() {
                    last = look();
                }
                last
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(100));
    assert_eq!(told(&run(floe().args(["umount", "--lazy"]).arg(&serving.place.path))), (Some(0), String::new()));
    for reader in readers {
        let last = within(move || reader.join().expect("no panic"));
        assert!(matches!(errno(last), Some(libc::ENOENT | libc::ENOTCONN)));
    }
    assert_eq!(serving.end().0.code(), Some(0));
}
