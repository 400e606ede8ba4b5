//! The layout of messages, and properties of the protocol for arbitrary values.

use std::{
    fs,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::Command,
};

use floe_fuse_wire::{
    Channel, DirectoryEntries, DirectoryEntry, Errno, InitFlags, Malformed, Opcode, Operation, Receipt, Received,
    Reply, Request, RequestBuffer, Terms,
    abi::{Dirent, Direntplus, EntryOut, ForgetOne, InHeader, InitIn, InitOut, LAYOUT, OutHeader},
};
use floe_testkit::skip::{Need, ready, skipped};
use proptest::prelude::*;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use zerocopy::{FromBytes, IntoBytes};

/// A request, aligned like received requests.
fn request(opcode: u32, body: &[u8]) -> Vec<u64> {
    let len = size_of::<InHeader>() + body.len();
    let header = InHeader { len: len as u32, opcode, unique: 7, nodeid: 1, ..InHeader::default() };
    let mut words = vec![0u64; len.div_ceil(8)];
    words.as_mut_bytes()[..40].copy_from_slice(header.as_bytes());
    words.as_mut_bytes()[40..len].copy_from_slice(body);
    words
}

fn parse(words: &[u64], len: usize) -> Result<Request<'_>, Malformed> {
    Request::parse(&words.as_bytes()[..len])
}

/// Creates a channel, and the kernel's end of it.
fn channel() -> (Channel, OwnedFd) {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None);
    let (ours, kernel) = pair.expect("two sockets");
    (Channel::new(ours), kernel)
}

/// Receives a reply: its error number and its bytes.
fn reply_of(kernel: &OwnedFd) -> Option<(i32, Vec<u8>)> {
    let mut bytes = vec![0; 1 << 17];
    let (len, _) = recv(kernel, &mut bytes[..], RecvFlags::empty()).ok()?;
    let (header, body) = OutHeader::read_from_prefix(&bytes[..len]).expect("a header");
    assert_eq!((header.len as usize, header.unique), (len, 7));
    Some((-header.error, body.to_vec()))
}

fn receive(channel: &Channel, kernel: &OwnedFd, opcode: Opcode, body: &[u8]) -> Reply {
    let words = request(opcode.0, body);
    send(kernel, &words.as_bytes()[..40 + body.len()], SendFlags::empty()).expect("there is room");
    match channel.receive(&mut RequestBuffer::new(0)).expect("a request") {
        Receipt::Request(Received { reply, .. }) => reply,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_request_or_malformed(opcode in 0u32..60, body in prop::collection::vec(any::<u8>(), 0..200)) {
        let words = request(opcode, &body);
        let len = 40 + body.len();
        match parse(&words, len) {
            Ok(request) => prop_assert_eq!(request.header.opcode, opcode),
            Err(malformed) => prop_assert!(matches!(malformed, Malformed::Body(_)), "{}", malformed),
        }
        for cut in 0..len {
            prop_assert_eq!(parse(&words, cut), Err(Malformed::Header));
        }
    }

    #[test]
    fn truncated_or_oversized_requests_are_malformed(len in 0usize..40, count in 1u32..) {
        prop_assert!(parse(&request(Opcode::READ.0, &vec![0; len]), 40 + len).is_err());
        let forgets = [count.to_ne_bytes(), [0; 4]].concat();
        prop_assert!(parse(&request(Opcode::BATCH_FORGET.0, &forgets), 48).is_err());
    }

    #[test]
    fn directories_are_read_back(names in prop::collection::vec("[a-z]{1,255}", 0..20), len_max in 0usize..4000) {
        let mut plain = DirectoryEntries::new(len_max);
        let mut plus = DirectoryEntries::new(len_max);
        let mut fitted = [Vec::new(), Vec::new()];
        for (index, name) in names.iter().enumerate() {
            let number = index as u64;
            let entry = DirectoryEntry { inode_number: number, next: number + 1, kind: 8, name: name.as_bytes() };
            if plain.add(&entry) {
                fitted[0].push((number, name.clone()));
            }
            if plus.add_with_node(&entry, &EntryOut { nodeid: number, ..EntryOut::default() }) {
                fitted[1].push((number, name.clone()));
            }
        }
        prop_assert!(plain.as_bytes().len() <= len_max && plus.as_bytes().len() <= len_max);
        prop_assert_eq!(plain.is_empty(), fitted[0].is_empty());
        prop_assert_eq!(listed(plain.as_bytes(), |bytes| Dirent::read_from_prefix(bytes).ok().map(|(it, _)| (it, 24))), fitted[0].clone());
        let of_plus = |bytes: &[u8]| {
            let (it, _) = Direntplus::read_from_prefix(bytes).ok()?;
            assert_eq!(it.entry_out.nodeid, it.dirent.ino);
            Some((it.dirent, 152))
        };
        prop_assert_eq!(listed(plus.as_bytes(), of_plus), fitted[1].clone());
    }

    #[test]
    fn only_offered_features_are_agreed_upon(offered: u64, wanted: u64, minor in 0u32..100, read_ahead: u32) {
        let (channel, kernel) = channel();
        let init = InitIn {
            major: 7,
            minor,
            max_readahead: read_ahead,
            flags: offered as u32,
            flags2: (offered >> 32) as u32,
            ..InitIn::default()
        };
        let words = request(Opcode::INIT.0, init.as_bytes());
        send(&kernel, words.as_bytes(), SendFlags::empty()).expect("there is room");
        let agreement = channel.negotiate(|_| Terms {
            flags: InitFlags::from_bits_retain(wanted),
            readahead_bytes_max: 1 << 20,
            background_max: 1,
            congestion_threshold: 1,
            write_bytes_max: 4096,
            pages_max: 256,
            time_granularity_ns: 1,
            request_timeout_s: 0,
        });
        let (errno, answer) = reply_of(&kernel).expect("an answer");
        if minor < 31 {
            prop_assert_eq!(errno, Errno::PROTO.raw_os_error());
            prop_assert!(agreement.is_err());
            return Ok(());
        }
        let has_second = offered & InitFlags::INIT_EXT.bits() != 0;
        let offered = if has_second { offered } else { offered & u64::from(u32::MAX) };
        let expected = offered & (wanted | InitFlags::INIT_EXT.bits());
        let out = InitOut::read_from_bytes(&answer[..]).expect("a whole answer");
        prop_assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, expected);
        prop_assert_eq!(agreement.expect("it is spoken").flags.bits(), expected);
        prop_assert_eq!(out.max_readahead, read_ahead.min(1 << 20));
    }
}

/// The numbers and names of the entries in a reply.
fn listed(mut bytes: &[u8], read: impl Fn(&[u8]) -> Option<(Dirent, usize)>) -> Vec<(u64, String)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (dirent, start) = read(bytes).expect("a whole entry");
        let end = start + dirent.namelen as usize;
        assert_eq!((dirent.off, dirent.r#type), (dirent.ino + 1, 8));
        found.push((dirent.ino, String::from_utf8(bytes[start..end].to_vec()).expect("text")));
        bytes = &bytes[end.next_multiple_of(8)..];
    }
    found
}

#[test]
fn requests_give_their_parts() {
    let words = request(Opcode::LOOKUP.0, b"a name\0");
    assert_eq!(parse(&words, 47).expect("a request").operation, Operation::Lookup(b"a name"));
    assert!(matches!(parse(&request(Opcode::LOOKUP.0, b"endless"), 47), Err(Malformed::Body(_))));
    let forgets = [ForgetOne { nodeid: 3, nlookup: 4 }, ForgetOne { nodeid: 5, nlookup: 6 }];
    let body = [&[2, 0, 0, 0, 0, 0, 0, 0], forgets.as_bytes()].concat();
    let words = request(Opcode::BATCH_FORGET.0, &body);
    assert_eq!(parse(&words, 80).expect("a request").operation, Operation::BatchForget(&forgets));
    let body = [&[9u8, 0, 0, 0, 0, 0, 0, 0][..], b"user.x\0"].concat();
    let words = request(Opcode::GETXATTR.0, &body);
    assert_eq!(parse(&words, 55).expect("a request").operation, Operation::Getxattr(9, b"user.x"));
    // An old kernel sends only the first four fields.
    let words = request(Opcode::INIT.0, [7u32, 31, 4096, 1].as_bytes());
    let expected = InitIn { major: 7, minor: 31, max_readahead: 4096, flags: 1, ..InitIn::default() };
    assert_eq!(parse(&words, 56).expect("a request").operation, Operation::Init(expected));
}

#[test]
fn a_reply_is_sent_exactly_once() {
    let (channel, kernel) = channel();
    let io = Errno::IO.raw_os_error();
    let take = |opcode, body: &[u8]| receive(&channel, &kernel, opcode, body);
    drop(take(Opcode::STATFS, &[]));
    assert_eq!(reply_of(&kernel), Some((io, Vec::new())));
    take(Opcode::STATFS, &[]).done();
    assert_eq!(reply_of(&kernel), Some((0, Vec::new())));
    take(Opcode::READLINK, &[]).pieces([b"one ", b"", b"two"]);
    assert_eq!(reply_of(&kernel), Some((0, b"one two".to_vec())));
    for (number, sent) in [(2, 2), (511, 511), (512, io), (4095, io)] {
        take(Opcode::STATFS, &[]).refuse(Errno::from_raw_os_error(number));
        assert_eq!(reply_of(&kernel), Some((sent, Vec::new())), "{number}");
    }
    let panicking = take(Opcode::STATFS, &[]);
    let _ = catch_unwind(AssertUnwindSafe(move || {
        let _reply = panicking;
        std::panic::resume_unwind(Box::new(()));
    }));
    assert_eq!(reply_of(&kernel), Some((io, Vec::new())));
    // A truncated request is refused like any other.
    drop(take(Opcode::READ, &[0; 8]));
    assert_eq!(reply_of(&kernel), Some((io, Vec::new())));
    for (opcode, body) in [(Opcode::FORGET, vec![0; 8]), (Opcode::BATCH_FORGET, vec![0; 8])] {
        take(opcode, &body).done();
        drop(take(opcode, &body));
    }
    assert_eq!(reply_of(&kernel), None, "nobody waits for those");
}

#[test]
fn a_malformed_header_ends_the_connection() {
    let (channel, kernel) = channel();
    let mut words = request(Opcode::STATFS.0, &[]);
    words[0] += 1;
    for bytes in [&words.as_bytes()[..40], &[1, 2, 3], &[]] {
        send(&kernel, bytes, SendFlags::empty()).expect("there is room");
        let error = channel.receive(&mut RequestBuffer::new(0)).expect_err("no request");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    }
}

/// Fields added after version 7.38, the oldest header in use. They were spare before.
const NEWER: [(&str, &str); 4] =
    [("InitOut", "max_stack_depth"), ("InitOut", "request_timeout"), ("InitOut", "unused"), ("OpenOut", "backing_id")];

#[test]
fn structures_are_laid_out_as_in_the_kernels_header() {
    if !ready(&[Need::Peer("cc")]) {
        return;
    }
    if !Path::new("/usr/include/linux/fuse.h").exists() {
        return skipped("the headers of Linux are not installed");
    }
    let mut program = "#include <stddef.h>\n#include <stdio.h>\n#include <linux/fuse.h>\nint main(void) {\n".to_owned();
    let mut expected = String::new();
    for (name, size, fields) in LAYOUT {
        let in_c = format!("struct fuse_{}", snake_case(name));
        program.push_str(&format!("printf(\"{name} %zu\\n\", sizeof({in_c}));\n"));
        expected.push_str(&format!("{name} {size}\n"));
        for (field, offset) in fields.iter().filter(|(field, _)| !NEWER.contains(&(name, field))) {
            let field = field.trim_start_matches("r#");
            program.push_str(&format!("printf(\"{name}.{field} %zu\\n\", offsetof({in_c}, {field}));\n"));
            expected.push_str(&format!("{name}.{field} {offset}\n"));
        }
    }
    program.push_str("return 0; }\n");
    let directory = tempfile::tempdir().expect("a directory");
    let (source, binary) = (directory.path().join("layout.c"), directory.path().join("layout"));
    fs::write(&source, program).expect("a file");
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&binary).output().expect("cc runs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&binary).output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&printed.stdout), expected);
}

/// `BatchForgetIn` as `batch_forget_in`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}
