//! A request of any bytes: parsed or refused, and what it says of itself must agree with its bytes.
#![no_main]

use floe_fuse_wire::{DirectoryEntries, DirectoryEntry, Malformed, Operation, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = check(bytes);
    // With the right length, the rest of it is looked at.
    if bytes.len() >= 40 {
        let mut bytes = bytes.to_vec();
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        assert_ne!(check(&bytes), Err(Malformed::Header));
    }
});

fn check(bytes: &[u8]) -> Result<(), Malformed> {
    let request = Request::parse(bytes)?;
    let body = bytes.len() - 40;
    match request.operation {
        Operation::Lookup(name) | Operation::Getxattr(_, name) => assert!(name.len() < body && !name.contains(&0)),
        Operation::BatchForget(forgets) => assert!(8 + 16 * forgets.len() <= body),
        Operation::Ioctl(ioctl, input) => assert_eq!(input.len(), ioctl.in_size as usize),
        Operation::Readdir(read) | Operation::Readdirplus(read) => {
            let mut entries = DirectoryEntries::new(read.size as usize);
            let entry = DirectoryEntry { inode_number: read.fh, next: read.offset, kind: 8, name: b"name" };
            for _ in 0..100 {
                let had_room = entries.add(&entry);
                assert!(entries.as_bytes().len() <= read.size as usize && (had_room || read.size < 3200));
            }
        }
        _ => {}
    }
    Ok(())
}
