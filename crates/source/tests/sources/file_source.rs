//! Files and block devices as sources.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::net::UnixListener,
    path::Path,
    process::Command,
};

use floe_image::ImageSource;
use floe_source::FileSource;
use floe_testkit::skip::{Need, ready, skipped};
use rustix::fs::{Advice, CWD, Mode, fadvise, mknodat};

/// A directory on a disk, not in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 % 251) as u8).collect()
}

fn write(path: &Path, data: &[u8]) -> File {
    fs::write(path, data).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    file.sync_all().unwrap();
    file
}

#[test]
fn parts_of_files_are_read_exactly() {
    let folder = folder();
    let path = folder.path().join("image");
    let data = numbered(10_000);
    write(&path, &data);
    for (offset, len) in [(0, None), (0, Some(10_000)), (100, None), (9_999, None), (10_000, None), (3, Some(50))] {
        let source = FileSource::open_part(&path, offset, len).unwrap();
        let expected = &data[offset as usize..][..len.unwrap_or(10_000 - offset) as usize];
        assert_eq!((source.len(), source.offset()), (expected.len() as u64, offset));
        assert_eq!(source.is_empty(), expected.is_empty());
        for (at, count) in [(0, expected.len()), (expected.len() / 2, 10), (expected.len(), 0), (expected.len(), 1)] {
            let mut output = vec![0; count];
            let read = source.read_at(at as u64, &mut output);
            match expected.get(at..at + count) {
                Some(expected) => assert!(read.is_ok() && output == expected, "{offset} {len:?} {at} {count}"),
                None => assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof),
            }
        }
        for at in [u64::MAX, u64::MAX - offset, 1 << 63] {
            for read in [source.read_at(at, &mut [0]), source.try_read_at(at, &mut [0]).map(|_| ())] {
                assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            }
            source.will_need(at, u64::MAX);
        }
        source.will_need(0, u64::MAX);
        source.will_need(1, 0);
    }
    for (offset, len) in
        [(10_001, None), (0, Some(10_001)), (5_000, Some(5_001)), (u64::MAX, None), (1, Some(u64::MAX))]
    {
        let error = FileSource::open_part(&path, offset, len).unwrap_err();
        assert_eq!(error.to_string(), "the file is too short: it ends after 10000 bytes");
    }
}

#[test]
fn directories_and_special_files_are_refused() {
    let folder = folder();
    let fifo = folder.path().join("fifo");
    mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    for (path, expected) in [
        (folder.path(), "it is a directory, not a regular file or a block device"),
        (&fifo, "it is a FIFO, not a regular file or a block device"),
        (&socket, "it is a socket, not a regular file or a block device"),
        (Path::new("/dev/null"), "it is a character device, not a regular file or a block device"),
    ] {
        assert_eq!(FileSource::open(path).unwrap_err().to_string(), expected);
    }
    let absent = FileSource::open(folder.path().join("absent")).unwrap_err();
    assert_eq!(absent.kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_truncated_file_ends_early() {
    let folder = folder();
    let path = folder.path().join("image");
    let file = write(&path, &numbered(100_000));
    let source = FileSource::open(&path).unwrap();
    file.set_len(50_000).unwrap();
    let mut output = vec![0; 1000];
    source.read_at(49_000, &mut output).unwrap();
    for offset in [49_500, 50_000, 90_000] {
        assert_eq!(source.read_at(offset, &mut output).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        // The page cache may hold bytes past the new end.
        match source.try_read_at(offset, &mut output) {
            Ok(is_in_memory) => assert!(!is_in_memory),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof),
        }
    }
}

#[test]
fn nowait_reads_return_only_data_in_memory() {
    let folder = folder();
    let path = folder.path().join("image");
    let data = numbered(4 << 20);
    let file = write(&path, &data);
    let source = FileSource::open(&path).unwrap();
    if !source.supports_nowait() {
        skipped("the file system of the target directory does not support RWF_NOWAIT");
        return;
    }
    let mut output = vec![0; 1 << 20];
    let mut was_absent = false;
    // The kernel may read the pages back at any time, so the test makes several attempts.
    for _ in 0..20 {
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        was_absent |= !source.try_read_at(1 << 20, &mut output).unwrap();
        source.read_at(1 << 20, &mut output).unwrap();
        assert!(output == data[1 << 20..2 << 20]);
        output.fill(0);
        if source.try_read_at(1 << 20, &mut output).unwrap() {
            assert!(output == data[1 << 20..2 << 20]);
        }
        if was_absent {
            break;
        }
    }
    assert!(was_absent, "dropped pages are not in memory");
    source.read_at(0, &mut output).unwrap();
    assert!(source.try_read_at(0, &mut output).unwrap(), "pages just read are in memory");
    assert!(output == data[..1 << 20]);
}

#[test]
fn a_will_need_hint_reads_ahead() {
    let folder = folder();
    let path = folder.path().join("image");
    let file = write(&path, &numbered(1 << 20));
    let source = FileSource::open(&path).unwrap();
    if !source.supports_nowait() {
        skipped("the file system of the target directory does not support RWF_NOWAIT");
        return;
    }
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    source.will_need(0, 64 * 1024);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut output = vec![0; 64 * 1024];
    while !source.try_read_at(0, &mut output).unwrap() {
        assert!(std::time::Instant::now() < deadline, "it was not read");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn nowait_reads_of_files_in_memory_succeed() {
    let Ok(mut file) = tempfile::tempfile_in("/dev/shm") else {
        skipped("there is no /dev/shm");
        return;
    };
    let data = numbered(100_000);
    file.write_all(&data).unwrap();
    let source = FileSource::new(file, 10, None).unwrap();
    let mut output = vec![0; 90_000];
    assert!(source.supports_nowait());
    assert!(source.try_read_at(0, &mut output).unwrap());
    assert!(output == data[10..][..90_000]);
}

#[test]
fn nowait_reads_fail_on_file_systems_without_support() {
    if !ready(&[Need::Root]) {
        return;
    }
    let folder = folder();
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    });
    write(&lower.join("image"), b"overlaid");
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    if !Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &options])
        .arg(&merged)
        .status()
        .unwrap()
        .success()
    {
        skipped("an overlayfs cannot be mounted");
        return;
    }
    let source = FileSource::open(merged.join("image"));
    let mut output = [0; 8];
    let results = source.and_then(|source| {
        source.read_at(0, &mut output)?;
        Ok((source.supports_nowait(), source.try_read_at(0, &mut output)?))
    });
    assert!(Command::new("umount").arg(&merged).status().unwrap().success());
    let (knows, is_in_memory) = results.unwrap();
    assert_eq!(&output, b"overlaid");
    assert_eq!(knows, is_in_memory, "it was just read");
}

#[test]
fn block_devices_have_their_size() {
    if !ready(&[Need::Root, Need::Peer("losetup")]) {
        return;
    }
    let folder = folder();
    let path = folder.path().join("image");
    let data = numbered(1 << 20);
    write(&path, &data);
    let output = Command::new("losetup").args(["--find", "--show", "--read-only"]).arg(&path).output().unwrap();
    if !output.status.success() {
        skipped("there is no free loop device");
        return;
    }
    let device = String::from_utf8(output.stdout).unwrap();
    let source = FileSource::open_part(device.trim(), 4096, None);
    let detached = Command::new("losetup").args(["--detach", device.trim()]).status().unwrap();
    let source = source.unwrap();
    assert_eq!(source.len(), (1 << 20) - 4096);
    let mut tail = vec![0; 10_000];
    source.read_at(source.len() - 10_000, &mut tail).unwrap();
    assert!(tail == data[data.len() - 10_000..]);
    assert!(detached.success());
}

#[test]
fn started_programs_do_not_inherit_the_file() {
    let folder = folder();
    let path = folder.path().join("image");
    write(&path, b"abc");
    let _source = FileSource::open(&path).unwrap();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap();
        if fs::read_link(entry.path()).is_ok_and(|target| target == path) {
            let number: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
            let status = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap();
            let flags = status.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            assert!(i64::from_str_radix(flags, 8).unwrap() & 0o2_000_000 != 0, "{status}");
            return;
        }
    }
    panic!("the file is not open");
}
