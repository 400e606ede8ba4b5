//! Slots of a ring: the memory in which the kernel puts one request and takes its reply.

use std::{io, ptr::NonNull};

use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap_anonymous, munmap},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::abi::{InHeader, OutHeader};

/// The bytes of a mapping before the payload: one page for the headers and their places.
const HEADER_BYTES: usize = 4096;

/// The offset in a mapping of the places of the headers and of the payload.
const PLACES_AT: usize = HEADER_BYTES / 2;

/// `fuse_uring_ent_in_out`: the part of the headers about the slot itself.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct SlotHeader {
    flags: u64,
    commit_id: u64,
    payload_sz: u32,
    padding: u32,
    reserved: u64,
}

/// `fuse_uring_req_header`: the headers of a request, which those of its reply overwrite.
#[repr(C)]
struct Headers {
    /// [`InHeader`], later [`OutHeader`].
    in_out: [u64; 16],
    /// The structure of the opcode.
    op_in: [u64; 16],
    slot: SlotHeader,
}

const _: () = assert!(size_of::<SlotHeader>() == 32 && size_of::<Headers>() == 288);
const _: () = assert!(size_of::<Headers>() <= PLACES_AT && PLACES_AT + size_of::<Places>() <= HEADER_BYTES);

/// The places of the headers and of the payload, as a command tells the kernel.
pub(crate) type Places = [libc::iovec; 2];

/// The memory of one request and its reply. The kernel accesses it only while a command with it is under way; the ring
/// owns it during that time, so that nobody else does.
#[derive(Debug)]
pub(crate) struct Slot {
    start: NonNull<u8>,
    payload_bytes: usize,
    /// Its number in the ring.
    pub(crate) index: usize,
    /// The kernel's queue that it belongs to.
    pub(crate) queue: u16,
    /// The kernel's number of the request in it.
    pub(crate) commit_id: u64,
    /// The last command with it.
    pub(crate) command: u32,
}

// SAFETY: the slot owns its mapping alone.
unsafe impl Send for Slot {}

impl Slot {
    /// Maps a slot for requests and replies of at most `payload_bytes`.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn new(index: usize, queue: u16, payload_bytes: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at a place of the kernel's choice.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                HEADER_BYTES + payload_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        let slot = Self { start, payload_bytes, index, queue, commit_id: 0, command: 0 };
        let places = [
            libc::iovec { iov_base: slot.start.as_ptr().cast(), iov_len: size_of::<Headers>() },
            libc::iovec { iov_base: slot.payload().as_ptr().cast(), iov_len: payload_bytes },
        ];
        // SAFETY: the places are in the mapping, aligned, and behind the headers.
        unsafe { slot.start.add(PLACES_AT).cast::<Places>().write(places) };
        Ok(slot)
    }

    /// The address of the places. It stays the same until the slot is dropped.
    pub(crate) fn places(&self) -> *const Places {
        // SAFETY: the mapping is longer than that.
        unsafe { self.start.add(PLACES_AT) }.cast().as_ptr()
    }

    /// Copies the request into a buffer, in the form in which `/dev/fuse` gives it. Returns its header and length; `None`
    /// if the kernel broke the protocol or the buffer is too small.
    pub(crate) fn take_request(&mut self, buffer: &mut [u8]) -> Option<(InHeader, usize)> {
        self.commit_id = self.headers().slot.commit_id;
        let headers = self.headers();
        let header = InHeader::read_from_prefix(headers.in_out.as_bytes()).ok()?.0;
        let (len, payload_len) = (header.len as usize, headers.slot.payload_sz as usize);
        let structure_len = len.checked_sub(size_of::<InHeader>())?.checked_sub(payload_len)?;
        // SAFETY: the payload is mapped, and nobody else accesses it as long as `self` is borrowed.
        let payload = unsafe { std::slice::from_raw_parts(self.payload().as_ptr(), self.payload_bytes) };
        let structure = headers.op_in.as_bytes().get(..structure_len)?;
        let payload = payload.get(..payload_len)?;
        let mut rest = buffer.get_mut(..len)?;
        for part in [header.as_bytes(), structure, payload] {
            let (to, after) = rest.split_at_mut(part.len());
            to.copy_from_slice(part);
            rest = after;
        }
        Some((header, len))
    }

    /// Puts a reply into the slot. Returns false if it is too long.
    pub(crate) fn put_reply(&mut self, unique: u64, error: i32, pieces: &[&[u8]]) -> bool {
        let len = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let (true, Ok(payload_sz)) = (len <= self.payload_bytes, u32::try_from(len)) else { return false };
        // SAFETY: as in `take_request`, and `self` is borrowed for writing.
        let mut rest = unsafe { std::slice::from_raw_parts_mut(self.payload().as_ptr(), self.payload_bytes) };
        for piece in pieces {
            let (to, after) = rest.split_at_mut(piece.len());
            to.copy_from_slice(piece);
            rest = after;
        }
        let out = OutHeader { len: payload_sz + size_of::<OutHeader>() as u32, error, unique };
        // SAFETY: the headers are mapped, aligned and initialised, and `self` is borrowed for writing.
        let headers = unsafe { self.start.cast::<Headers>().as_mut() };
        headers.in_out.as_mut_bytes()[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        headers.slot.payload_sz = payload_sz;
        true
    }

    fn headers(&self) -> &Headers {
        // SAFETY: the headers are mapped, aligned and initialised (with zeros at first), and nobody changes them as long as
        // `self` is borrowed.
        unsafe { self.start.cast().as_ref() }
    }

    fn payload(&self) -> NonNull<u8> {
        // SAFETY: the mapping is longer than that.
        unsafe { self.start.add(HEADER_BYTES) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: the mapping is the slot's own, and no slice of it outlives the slot.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), HEADER_BYTES + self.payload_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts a request into a slot, as the kernel does.
    fn deliver(slot: &mut Slot, header: InHeader, structure: &[u8], payload: &[u8]) {
        // SAFETY: as in `put_reply`.
        let headers = unsafe { slot.start.cast::<Headers>().as_mut() };
        headers.in_out.as_mut_bytes()[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        headers.op_in.as_mut_bytes()[..structure.len()].copy_from_slice(structure);
        headers.slot = SlotHeader { commit_id: 7, payload_sz: payload.len() as u32, ..SlotHeader::default() };
        // SAFETY: as in `put_reply`.
        let place = unsafe { std::slice::from_raw_parts_mut(slot.payload().as_ptr(), slot.payload_bytes) };
        place[..payload.len()].copy_from_slice(payload);
    }

    #[test]
    fn requests_are_assembled_and_checked() {
        let mut slot = Slot::new(0, 3, 8192).expect("memory");
        let mut buffer = [0; 64];
        let mut check = |len: u32, structure: &[u8], payload: &[u8], expected: Option<usize>| {
            deliver(&mut slot, InHeader { len, unique: 9, ..InHeader::default() }, structure, payload);
            let taken = slot.take_request(&mut buffer);
            assert_eq!(taken.map(|(_, len)| len), expected, "{len}");
            assert_eq!(slot.commit_id, 7);
            if taken.is_some() {
                assert_eq!(buffer[40..][..structure.len()], *structure);
                assert_eq!(buffer[40 + structure.len()..][..payload.len()], *payload);
            }
        };
        check(40, b"", b"", Some(40));
        check(48, b"12345678", b"", Some(48));
        check(51, b"12345678", b"abc", Some(51));
        check(39, b"", b"", None);
        // The lengths contradict each other.
        check(42, b"", b"abc", None);
        check(40 + 129, b"", b"", None);
        // The buffer is too small.
        check(65, b"12345678", b"12345678901234567", None);
        deliver(&mut slot, InHeader { len: u32::MAX, ..InHeader::default() }, b"", b"");
        // SAFETY: as in `put_reply`.
        unsafe { slot.start.cast::<Headers>().as_mut() }.slot.payload_sz = u32::MAX - 40;
        assert_eq!(slot.take_request(&mut buffer), None);
    }

    #[test]
    fn replies_that_are_too_long_are_refused() {
        let mut slot = Slot::new(0, 3, 8192).expect("memory");
        assert!(slot.put_reply(9, 0, &[b"ab", b"", b"c"]));
        let headers = slot.headers();
        let out = OutHeader::read_from_prefix(headers.in_out.as_bytes()).expect("a header").0;
        assert_eq!(out, OutHeader { len: 19, error: 0, unique: 9 });
        assert_eq!(headers.slot.payload_sz, 3);
        assert!(slot.put_reply(9, 0, &[&[1; 8192]]));
        assert!(!slot.put_reply(9, 0, &[&[1; 8192], b"a"]));
        assert!(slot.put_reply(9, -5, &[]));
    }
}
