//! A mount as its clients see it.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read, Seek, SeekFrom},
    mem::MaybeUninit,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use floe_fuse::{KernelOptions, MountOptions, Readdir, RequestKind};
use floe_image::{DeviceNumber, FileType};
use floe_testkit::{
    KernelCaches, drop_kernel_caches, keep_kernel_caches,
    skip::{self, Need},
};

use crate::support::{Fault, Numbering, TestMount, TreeFileSystem, can_mount};

/// A tree with inodes of all types.
fn sample(numbering: Numbering) -> TreeFileSystem {
    let mut tree = TreeFileSystem::new(numbering);
    let file = tree.file("file", b"hello\n");
    tree.xattr(file, "user.comment", b"a value");
    tree.xattr(file, "trusted.overlay", b"y");
    tree.attr_mut(file).permissions = 0o4751;
    tree.attr_mut(file).uid = 70_000;
    tree.attr_mut(file).gid = 80_000;
    tree.directory("directory");
    tree.file("directory/a", &pattern(70_000));
    tree.link("directory/link", file);
    let sparse = tree.file("directory/sparse", &[]);
    tree.append_hole(sparse, 1 << 20);
    tree.append(sparse, &pattern(8192));
    tree.append_hole(sparse, 5000);
    tree.symlink("symlink", "directory/a");
    tree.special("null", FileType::CharacterDevice, DeviceNumber { major: 1, minor: 3 });
    tree.special("disk", FileType::BlockDevice, DeviceNumber { major: 259, minor: 70_000 });
    tree.special("fifo", FileType::Fifo, DeviceNumber::default());
    tree.special("socket", FileType::Socket, DeviceNumber::default());
    let old = tree.file("old", b"");
    tree.attr_mut(old).modified = floe_image::Timestamp { seconds: -86_400, nanoseconds: 5 };
    tree.directory("many");
    for index in 0..500 {
        tree.file(&format!("many/{index:04}-with-a-rather-long-name"), &[]);
    }
    tree
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

pub(crate) fn options(readdir: Readdir) -> MountOptions {
    MountOptions { readdir, ..MountOptions::default() }
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn a_walk_finds_what_the_tree_holds() {
    if !can_mount() {
        return;
    }
    for numbering in [Numbering::Nids, Numbering::Learnt] {
        for readdir in [Readdir::Plain, Readdir::Plus, Readdir::Auto] {
            let mount = TestMount::new(sample(numbering), &options(readdir));
            let mut expected: BTreeMap<_, _> = mount.tree.walk().into_iter().collect();
            let mut found = 0;
            let mut left = vec![(String::new(), None)];
            while let Some((path, dirent)) = left.pop() {
                let attr = expected.remove(&path).unwrap_or_else(|| panic!("{path} is in the tree once"));
                let stat = fs::symlink_metadata(mount.file(&path)).expect("stat");
                let case = format!("{numbering:?} {readdir:?} {path:?}");
                if let Some(inode_number) = dirent {
                    assert_eq!(inode_number, attr.inode_number, "{case} in its directory");
                }
                assert_eq!(stat.ino(), attr.inode_number, "{case}");
                assert_eq!(stat.mode(), u32::from(attr.mode()), "{case}");
                assert_eq!((stat.uid(), stat.gid()), (attr.uid, attr.gid), "{case}");
                assert_eq!(stat.size(), attr.size, "{case}");
                assert_eq!(stat.nlink(), u64::from(attr.link_count), "{case}");
                assert_eq!(stat.blocks(), attr.blocks_512, "{case}");
                let modified = (attr.modified.seconds, i64::from(attr.modified.nanoseconds));
                assert_eq!((stat.mtime(), stat.mtime_nsec()), modified, "{case}");
                assert_eq!((stat.ctime(), stat.ctime_nsec()), modified, "{case}");
                let device = (rustix::fs::major(stat.rdev()), rustix::fs::minor(stat.rdev()));
                assert_eq!(device, (attr.device.major, attr.device.minor), "{case}");
                if attr.file_type == FileType::Symlink {
                    let target = fs::read_link(mount.file(&path)).expect("a target");
                    assert_eq!(target.as_os_str().as_encoded_bytes(), mount.tree.target(attr.nid), "{case}");
                }
                if attr.file_type == FileType::Directory {
                    let mut dots = Vec::new();
                    for (name, number) in entries(&mount.file(&path)) {
                        if name == "." || name == ".." {
                            dots.push((name, number));
                        } else {
                            left.push((if path.is_empty() { name } else { format!("{path}/{name}") }, Some(number)));
                        }
                    }
                    let root = mount.tree.walk()[0].1.inode_number;
                    assert_eq!(dots, [(".".to_owned(), attr.inode_number), ("..".to_owned(), root)], "{case}");
                }
                found += 1;
            }
            assert!(expected.is_empty(), "{numbering:?} {readdir:?}: not found: {expected:?}");
            assert!(found > 500);
        }
    }
}

/// The names and inode numbers in a directory, including "." and "..". The C library omits entries with the number 0.
pub(crate) fn entries(path: &Path) -> Vec<(String, u64)> {
    let directory = fs::File::open(path).expect("a directory");
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = rustix::fs::RawDir::new(&directory, &mut buffer);
    let mut found = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.expect("an entry");
        found.push((entry.file_name().to_str().expect("text").to_owned(), entry.ino()));
    }
    found
}

#[test]
fn data_is_read_exactly() {
    if !can_mount() {
        return;
    }
    let mut tree = sample(Numbering::Learnt);
    let big = pattern((5 << 20) + 123);
    tree.file("big", &big);
    let mount = TestMount::new(tree, &MountOptions::default());
    assert_eq!(fs::read(mount.file("file")).expect("data"), b"hello\n");
    assert_eq!(fs::read(mount.file("symlink")).expect("data"), pattern(70_000));
    let sparse = fs::read(mount.file("directory/sparse")).expect("data");
    let expected = [vec![0; 1 << 20], pattern(8192), vec![0; 5000]].concat();
    assert!(sparse == expected);
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let file = fs::File::open(mount.file("big")).expect("a file");
                loop {
                    let offset = next.fetch_add(1, Relaxed).wrapping_mul(99_991) % (big.len() as u64 + 4096);
                    if next.load(Relaxed) > 2000 {
                        break;
                    }
                    let mut bytes = vec![0; 5000];
                    let len = file.read_at(&mut bytes, offset).expect("data");
                    let rest = big.get(offset as usize..).unwrap_or_default();
                    assert!(bytes[..len] == rest[..rest.len().min(5000)], "{len} bytes at {offset}");
                }
            });
        }
    });
}

#[test]
fn the_kernel_caches_replies_forever() {
    if !can_mount() {
        return;
    }
    for numbering in [Numbering::Nids, Numbering::Learnt] {
        let mount = TestMount::new(sample(numbering), &options(Readdir::Plain));
        let look = || {
            assert_eq!(errno(fs::metadata(mount.file("directory/missing"))), Some(libc::ENOENT));
            fs::metadata(mount.file("directory/a")).expect("a file");
            fs::metadata(mount.file("many/0000-with-a-rather-long-name")).expect("a file");
            fs::read_link(mount.file("symlink")).expect("a target");
            assert_eq!(entries(&mount.file("many")).len(), 502);
            fs::read(mount.file("directory/a")).expect("data");
        };
        look();
        let calls = &mount.tree.calls;
        let count = || [&calls.attr, &calls.lookup, &calls.read_dir, &calls.read_link].map(|calls| calls.load(Relaxed));
        assert!(count().iter().all(|count| *count > 0), "{:?}", count());
        // Another process may drop the caches of the machine, which makes the kernel ask again.
        let is_kept = (0..5).any(|_| {
            let before = count();
            look();
            count() == before
        });
        assert!(is_kept, "attr, lookup, read_dir, read_link of {numbering:?}: {:?}", count());
    }
}

#[test]
fn extended_attributes_answer_sizes_and_bounds() {
    if !can_mount() {
        return;
    }
    use rustix::{
        fs::{getxattr, getxattr_query, listxattr, listxattr_query},
        io::Errno,
    };
    let mount = TestMount::new(sample(Numbering::Nids), &MountOptions::default());
    let file = mount.file("file");
    let mut room = [0; 100];
    let mut small = [0; 3];
    assert_eq!(getxattr_query(&file, "user.comment"), Ok(7));
    assert_eq!(getxattr(&file, "user.comment", &mut room[..]), Ok(7));
    assert_eq!(&room[..7], b"a value");
    assert_eq!(getxattr(&file, "user.comment", &mut small[..]), Err(Errno::RANGE));
    assert_eq!(getxattr(&file, "user.missing", &mut room[..]), Err(Errno::NODATA));
    assert_eq!(getxattr(mount.file("old"), "user.comment", &mut room[..]), Err(Errno::NODATA));
    assert_eq!(listxattr_query(&file), Ok(29));
    assert_eq!(listxattr(&file, &mut room[..]), Ok(29));
    assert_eq!(&room[..29], b"user.comment\0trusted.overlay\0");
    assert_eq!(listxattr(&file, &mut small[..]), Err(Errno::RANGE));
    assert_eq!(listxattr(mount.file("old"), &mut room[..]), Ok(0));
    if !skip::ready(&[Need::Peer("setpriv"), Need::Peer("getfattr")]) {
        return;
    }
    let seen = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "getfattr", "-d", "-m-", "--absolute-names"])
        .arg(&file)
        .output();
    let text = String::from_utf8_lossy(&seen.expect("setpriv runs").stdout).into_owned();
    assert!(!text.contains("trusted"), "only root sees those: {text}");
}

/// The value of `system.posix_acl_access` with one named user and permissions for all others.
fn access_list(uid: u32, permissions: u16, others: u16) -> Vec<u8> {
    let entries = [
        (0x01, 6, u32::MAX),
        (0x02, permissions, uid),
        (0x04, others, u32::MAX),
        (0x10, 6, u32::MAX),
        (0x20, others, u32::MAX),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&u16::to_le_bytes(tag));
        bytes.extend_from_slice(&u16::to_le_bytes(permissions));
        bytes.extend_from_slice(&u32::to_le_bytes(id));
    }
    bytes
}

#[test]
fn modes_and_access_lists_decide_who_reads() {
    if !can_mount() || !skip::ready(&[Need::Peer("setpriv")]) {
        return;
    }
    for acl in [true, false] {
        let mut tree = TreeFileSystem::new(Numbering::Nids);
        for (name, mode, permissions, others) in [("denied", 0o664, 0, 4), ("allowed", 0o660, 4, 0)] {
            let index = tree.file(name, b"data");
            tree.attr_mut(index).permissions = mode;
            tree.xattr(index, "system.posix_acl_access", &access_list(65_534, permissions, others));
        }
        for (name, mode) in [("open", 0o644), ("closed", 0o600)] {
            let index = tree.file(name, b"data");
            tree.attr_mut(index).permissions = mode;
        }
        let kernel = KernelOptions { acl: Some(acl), ..KernelOptions::default() };
        let mount = TestMount::new(tree, &MountOptions { kernel, ..MountOptions::default() });
        // Without access control lists, only the mode bits count.
        for (name, can_read) in [("denied", !acl), ("allowed", acl), ("open", true), ("closed", false)] {
            let output = std::process::Command::new("setpriv")
                .args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"])
                .arg(mount.file(name))
                .output();
            let output = output.expect("setpriv runs");
            assert_eq!(output.status.success(), can_read, "{name}, lists: {acl}: {output:?}");
        }
    }
}

#[test]
fn seeks_find_holes_and_data() {
    if !can_mount() {
        return;
    }
    let mount = TestMount::new(sample(Numbering::Nids), &MountOptions::default());
    let file = fs::File::open(mount.file("directory/sparse")).expect("a file");
    let (start, end) = (1 << 20, (1 << 20) + 8192);
    let size = end + 5000;
    for (from, expected) in [
        (rustix::fs::SeekFrom::Data(0), Ok(start)),
        (rustix::fs::SeekFrom::Data(start + 5), Ok(start + 5)),
        (rustix::fs::SeekFrom::Data(end), Err(rustix::io::Errno::NXIO)),
        (rustix::fs::SeekFrom::Hole(0), Ok(0)),
        (rustix::fs::SeekFrom::Hole(start), Ok(end)),
        (rustix::fs::SeekFrom::Hole(size - 1), Ok(size - 1)),
        (rustix::fs::SeekFrom::Hole(size), Err(rustix::io::Errno::NXIO)),
    ] {
        assert_eq!(rustix::fs::seek(&file, from), expected, "{from:?}");
    }
    let mut file = file;
    file.seek(SeekFrom::Start(start)).expect("a seek");
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).expect("data");
    assert_eq!(bytes.len() as u64, size - start);
}

#[test]
fn nothing_can_be_changed() {
    if !can_mount() {
        return;
    }
    let mount = TestMount::new(sample(Numbering::Nids), &MountOptions::default());
    let remount = std::process::Command::new("mount").args(["-o", "remount,rw"]).arg(mount.path()).output();
    let is_writable = remount.is_ok_and(|output| output.status.success());
    let file = mount.file("file");
    for (what, error) in [
        ("write", errno(fs::OpenOptions::new().write(true).open(&file).and_then(|file| file.write_at(b"x", 0)))),
        ("create", errno(fs::File::create(mount.file("new")))),
        ("mkdir", errno(fs::create_dir(mount.file("new")))),
        ("unlink", errno(fs::remove_file(&file))),
        ("rmdir", errno(fs::remove_dir(mount.file("many")))),
        ("rename", errno(fs::rename(&file, mount.file("new")))),
        ("link", errno(fs::hard_link(&file, mount.file("new")))),
        ("symlink", errno(std::os::unix::fs::symlink("x", mount.file("new")))),
        ("chmod", errno(fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)))),
        ("truncate", errno(fs::OpenOptions::new().write(true).open(&file).and_then(|file| file.set_len(1)))),
    ] {
        assert_eq!(error, Some(libc::EROFS), "{what}, remounted rw: {is_writable}");
    }
}

#[test]
fn faults_of_an_inode_stay_with_it() {
    if !can_mount() {
        return;
    }
    for numbering in [Numbering::Nids, Numbering::Learnt] {
        for readdir in [Readdir::Plain, Readdir::Plus] {
            let mut tree = sample(numbering);
            for (name, fault) in [
                ("directory/corrupt", Fault::CorruptAttr),
                ("directory/panicking", Fault::PanickingAttr),
                ("directory/unmapped", Fault::CorruptMap),
            ] {
                let index = tree.file(name, b"data");
                tree.fault(index, fault);
            }
            let mount = TestMount::new(tree, &options(readdir));
            let case = format!("{numbering:?} {readdir:?}");
            assert_eq!(errno(fs::metadata(mount.file("directory/corrupt"))), Some(libc::EUCLEAN), "{case}");
            assert_eq!(errno(fs::metadata(mount.file("directory/panicking"))), Some(libc::EIO), "{case}");
            assert_eq!(errno(fs::read(mount.file("directory/unmapped"))), Some(libc::EUCLEAN), "{case}");
            if readdir == Readdir::Plain {
                assert_eq!(entries(&mount.file("directory")).len(), 8, "{case}");
            }
            assert_eq!(fs::read(mount.file("file")).expect("data"), b"hello\n", "{case}");
        }
    }
}

#[test]
fn corrupt_entries_are_listed() {
    if !can_mount() {
        return;
    }
    for numbering in [Numbering::Nids, Numbering::Learnt] {
        let mut tree = sample(numbering);
        let index = tree.file("directory/corrupt", b"data");
        tree.fault(index, Fault::CorruptAttr);
        let mount = TestMount::new(tree, &options(Readdir::Plus));
        let number =
            mount.tree.walk().into_iter().find(|(path, _)| path == "directory/corrupt").expect("it").1.inode_number;
        for _ in 0..3 {
            let found = entries(&mount.file("directory"));
            assert!(found.contains(&("corrupt".to_owned(), number)), "{numbering:?} {found:?}");
            assert_eq!(errno(fs::metadata(mount.file("directory/corrupt"))), Some(libc::EUCLEAN));
            fs::metadata(mount.file("directory/a")).expect("its neighbour is well");
            if !drop_kernel_caches(KernelCaches::Names) {
                return;
            }
        }
    }
}

#[test]
fn forgotten_nodes_are_found_again() {
    if !can_mount() {
        return;
    }
    for readdir in [Readdir::Plain, Readdir::Plus, Readdir::Auto] {
        let mount = TestMount::new(sample(Numbering::Learnt), &options(readdir));
        let open = fs::File::open(mount.file("directory/a")).expect("a file");
        for _ in 0..5 {
            for (path, attr) in mount.tree.walk() {
                let stat = fs::symlink_metadata(mount.file(&path)).expect("stat");
                assert_eq!(stat.ino(), attr.inode_number, "{path}");
            }
            assert_eq!(entries(&mount.file("many")).len(), 502);
            if !drop_kernel_caches(KernelCaches::Names) || !drop_kernel_caches(KernelCaches::All) {
                return;
            }
            let mut bytes = vec![0; 70_000];
            open.read_exact_at(&mut bytes, 0).expect("an open file stays");
            assert!(bytes == pattern(70_000));
        }
    }
}

#[test]
fn statistics_are_those_of_the_image() {
    if !can_mount() {
        return;
    }
    let mount = TestMount::new(sample(Numbering::Nids), &MountOptions::default());
    let stat = rustix::fs::statvfs(mount.path()).expect("statistics");
    assert_eq!((stat.f_blocks, stat.f_bfree, stat.f_bavail), (1234, 0, 0));
    assert_eq!((stat.f_bsize, stat.f_frsize, stat.f_namemax), (4096, 4096, 256));
    assert!(stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    for (name_len, expected) in [(256, rustix::io::Errno::NOENT), (257, rustix::io::Errno::NAMETOOLONG)] {
        let found = rustix::fs::stat(mount.path().join("n".repeat(name_len)));
        assert_eq!(found.err(), Some(expected), "a name of {name_len} bytes");
    }
}

#[test]
fn without_attributes_in_the_image_the_kernel_stops_asking() {
    if !can_mount() {
        return;
    }
    let _kept = keep_kernel_caches();
    for has_xattrs in [true, false] {
        let mut tree = sample(Numbering::Nids);
        tree.has_xattrs = has_xattrs;
        let mount = TestMount::new(tree, &MountOptions::default());
        let mut room = [0; 100];
        for _ in 0..10 {
            let value = rustix::fs::getxattr(mount.file("file"), "user.comment", &mut room[..]);
            let list = rustix::fs::listxattr(mount.file("file"), &mut room[..]);
            let expected = if has_xattrs { [Ok(7), Ok(29)] } else { [Err(rustix::io::Errno::OPNOTSUPP); 2] };
            assert_eq!([value, list], expected);
        }
        let requests = [RequestKind::Getxattr, RequestKind::Listxattr].map(|kind| mount.counts().of(kind));
        // The kernel may send requests of its own.
        assert!(if has_xattrs { requests >= [10, 10] } else { requests == [1, 1] }, "{requests:?}");
    }
}
