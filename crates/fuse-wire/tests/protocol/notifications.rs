//! The reactions of a real kernel to unsolicited messages.

use std::{fs, sync::mpsc, thread};

use floe_fuse_wire::{
    Channel, Errno, InitFlags, Notifier, Opcode, Operation, ROOT_NODE, Receipt, Received, Reply, RequestBuffer,
};
use rustix::mount::UnmountFlags;

use crate::support::{CONTENT_BYTES, Sample, TestMount, can_mount};

const FILE: u64 = 2;

/// Runs `work` over a mount of the sample. Returns the opcodes received after `prepare`.
fn asked(prepare: impl FnOnce(&TestMount), work: impl FnOnce(&TestMount, &Notifier)) -> Vec<Opcode> {
    let (mount, device) = TestMount::new();
    let channel = Channel::new(device);
    let notifier = Notifier::new(channel.clone());
    let serving = thread::spawn(move || {
        let mut sample = Sample::new(channel, InitFlags::all() - InitFlags::OVER_IO_URING);
        sample.negotiate().expect("terms");
        sample.serve().expect("an unmount ends it");
        sample
    });
    prepare(&mount);
    // A request that occurs only here, to separate the requests of `prepare` from those of `work`.
    let _ = rustix::fs::readlink(mount.path().join("link"), Vec::new());
    work(&mount, &notifier);
    rustix::mount::unmount(mount.path(), UnmountFlags::empty()).expect("an unmount");
    let sample = serving.join().expect("no panic");
    let since = sample.received.iter().position(|opcode| *opcode == Opcode::READLINK).expect("it was asked");
    sample.received[since + 1..].to_vec()
}

fn read_file(mount: &TestMount) -> Vec<u8> {
    fs::read(mount.path().join("file")).expect("data")
}

fn stat_file(mount: &TestMount) {
    fs::metadata(mount.path().join("file")).expect("attributes");
}

#[test]
fn stored_bytes_are_read_without_a_request() {
    if !can_mount() {
        return;
    }
    let stored = vec![7; CONTENT_BYTES];
    let requests = asked(stat_file, |mount, notifier| {
        notifier.store(FILE, 0, &stored).expect("it is stored");
        assert!(read_file(mount) == stored);
    });
    assert!(!requests.contains(&Opcode::READ), "{requests:?}");
}

#[test]
fn invalid_names_are_looked_up_again() {
    if !can_mount() {
        return;
    }
    let requests = asked(stat_file, |mount, _| stat_file(mount));
    assert!(!requests.contains(&Opcode::LOOKUP), "{requests:?}");
    let requests = asked(stat_file, |mount, notifier| {
        notifier.invalidate_entry(ROOT_NODE, b"file").expect("it is known");
        stat_file(mount);
    });
    assert!(requests.contains(&Opcode::LOOKUP), "{requests:?}");
}

#[test]
fn notifications_for_unknown_nodes_fail() {
    if !can_mount() {
        return;
    }
    asked(
        |_| {},
        |_, notifier| {
            for result in [notifier.store(77, 0, b"bytes"), notifier.invalidate_entry(ROOT_NODE, b"never")] {
                let error = result.expect_err("there is no such thing");
                assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
            }
        },
    );
}

#[test]
fn unanswered_requests_are_sent_again() {
    if !can_mount() {
        return;
    }
    let (mount, device) = TestMount::new();
    let channel = Channel::new(device);
    let serving = thread::spawn(move || {
        let mut sample = Sample::new(channel.clone(), InitFlags::HAS_RESEND);
        sample.negotiate().expect("terms");
        let mut buffer = RequestBuffer::new(4096);
        // A server dies without answering a request; another one takes over the connection.
        let (first, reply) = next(&channel, &mut buffer);
        assert!(!first.1);
        std::mem::forget(reply);
        Notifier::new(channel.clone()).resend().expect("the kernel can");
        let (second, reply) = next(&channel, &mut buffer);
        assert!(second.1 && second.0 & !(1 << 63) == first.0, "{first:?} {second:?}");
        reply.with(&floe_fuse_wire::abi::StatfsOut::default());
        sample.serve()
    });
    rustix::fs::statvfs(mount.path()).expect("it is answered in the end");
    drop(mount);
    serving.join().expect("no panic").expect("an unmount ends it");
}

/// Returns the number of the next request, whether it was resent, and its reply.
fn next(channel: &Channel, buffer: &mut RequestBuffer) -> ((u64, bool), Reply) {
    match channel.receive(buffer).expect("a request") {
        Receipt::Request(Received { request, reply }) => {
            let request = request.expect("a sound request");
            assert_eq!(request.operation, Operation::Statfs);
            ((request.header.unique, request.is_resent()), reply)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn replies_come_from_any_thread_and_descriptor_and_dropped_ones_are_errors() {
    if !can_mount() {
        return;
    }
    let (mount, device) = TestMount::new();
    let channel = Channel::new(device);
    let sample = Sample::new(channel.clone(), InitFlags::empty());
    let (sender, replies) = mpsc::channel::<Reply>();
    let (ready, is_ready) = mpsc::channel();
    let serving = thread::spawn(move || {
        sample.negotiate().expect("terms");
        let joined = channel.join().expect("another descriptor");
        assert!(matches!(
            channel.join_without_waiting().expect("a third").receive(&mut RequestBuffer::new(0)),
            Ok(Receipt::Nothing)
        ));
        ready.send(()).expect("the other thread waits");
        let mut buffer = RequestBuffer::new(4096);
        while let Ok(Receipt::Request(Received { request, reply })) = joined.receive(&mut buffer) {
            match request.expect("a sound request").operation {
                Operation::Statfs => sender.send(reply).expect("the other thread lives"),
                _ => drop(reply),
            }
        }
    });
    let answering = thread::spawn(move || {
        for (index, reply) in replies.into_iter().enumerate() {
            match index % 2 {
                0 => reply.with(&floe_fuse_wire::abi::StatfsOut::default()),
                _ => drop(reply),
            }
        }
    });
    is_ready.recv().expect("terms were found");
    let statistics = || rustix::fs::statvfs(mount.path()).map(drop);
    assert_eq!([statistics(), statistics(), statistics()], [Ok(()), Err(Errno::IO), Ok(())]);
    assert_eq!(fs::metadata(mount.path().join("file")).map(drop).map_err(|error| error.raw_os_error()), Err(Some(5)));
    drop(mount);
    serving.join().expect("no panic");
    answering.join().expect("no panic");
}
