//! A CPU's perf events for thread arrivals: a second source besides tracefs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A software event that counts nothing: only the accompanying records are needed.
const TYPE_SOFTWARE: u32 = 1;
const SOFTWARE_DUMMY: u64 = 9;
/// Each record ends with process and thread ID, and the time.
const SAMPLE_TID_AND_TIME: u64 = 2 | 4;
/// Bits of `perf_event_attr`: disabled, watermark, sample_id_all, use_clockid, context_switch.
const FLAGS: u64 = 1 | 1 << 14 | 1 << 18 | 1 << 25 | 1 << 26;
const IOCTL_ENABLE: libc::Ioctl = 0x2400;
const IOCTL_DISABLE: libc::Ioctl = 0x2401;
/// The offsets in the first page of the kernel's write position and our read position.
const HEAD_OFFSET: usize = 1024;
const TAIL_OFFSET: usize = 1032;

/// `struct perf_event_attr` of Linux 4.9 (`PERF_ATTR_SIZE_VER5`); later kernels assume zero for missing fields.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    breakpoint_kind: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clock_id: i32,
    sample_regs_interrupt: u64,
    auxiliary_watermark: u32,
    sample_stack_max: u16,
    reserved: u16,
}

const _: () = assert!(size_of::<Attributes>() == 112);

/// An open perf event.
#[derive(Clone, Debug)]
pub(crate) struct PerfEvent {
    file: Arc<OwnedFd>,
}

/// The ring into which the kernel writes the records. One thread reads it.
#[derive(Debug)]
pub(crate) struct PerfRing {
    event: PerfEvent,
    start: NonNull<u8>,
    page_bytes: usize,
    data_bytes: usize,
}

// SAFETY: only this value owns the mapping, which does not depend on the current thread.
unsafe impl Send for PerfRing {}

impl PerfEvent {
    /// Opens an event for the context switches of all threads on one CPU, disabled at first; needs root or CAP_PERFMON.
    pub(crate) fn context_switches_of_cpu(cpu: u32, watermark_bytes: u32) -> io::Result<Self> {
        let attributes = Attributes {
            kind: TYPE_SOFTWARE,
            size: u32::try_from(size_of::<Attributes>()).unwrap_or(0),
            config: SOFTWARE_DUMMY,
            sample_type: SAMPLE_TID_AND_TIME,
            flags: FLAGS,
            wakeup_watermark: watermark_bytes,
            clock_id: libc::CLOCK_BOOTTIME,
            ..Attributes::default()
        };
        let every_thread: libc::pid_t = -1;
        let no_group: libc::c_int = -1;
        let close_on_exec: libc::c_ulong = 8;
        // SAFETY: the attributes outlive the call and contain their size.
        let file = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                every_thread,
                cpu.cast_signed(),
                no_group,
                close_on_exec,
            )
        };
        let file = i32::try_from(file).ok().filter(|&file| file >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        Ok(Self { file: Arc::new(unsafe { OwnedFd::from_raw_fd(file) }) })
    }

    /// Enables or disables recording.
    pub(crate) fn record(&self, is_on: bool) -> io::Result<()> {
        let request = if is_on { IOCTL_ENABLE } else { IOCTL_DISABLE };
        // SAFETY: these requests take a number and access no memory.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), request, 0) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for PerfRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.file.as_fd()
    }
}

impl PerfRing {
    /// Maps a ring for `data_bytes` of records, a power of two and a multiple of the page size.
    pub(crate) fn new(event: PerfEvent, data_bytes: usize) -> io::Result<Self> {
        let page_bytes = rustix::param::page_size();
        if !data_bytes.is_power_of_two() || data_bytes < page_bytes {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let (access, file) = (libc::PROT_READ | libc::PROT_WRITE, event.file.as_raw_fd());
        // SAFETY: a fresh mapping overlaps nothing.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), page_bytes + data_bytes, access, libc::MAP_SHARED, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { event, start, page_bytes, data_bytes })
    }

    /// Appends the complete records written since the last call, and releases their space to the kernel.
    pub(crate) fn drain(&mut self, records: &mut Vec<u8>) {
        // The kernel writes the head and reads the tail; both count bytes without wrapping.
        let (head, tail) = (self.position(HEAD_OFFSET), self.position(TAIL_OFFSET));
        let end = head.load(Ordering::Acquire);
        let begin = tail.load(Ordering::Relaxed);
        let length = usize::try_from(end.wrapping_sub(begin)).unwrap_or(0).min(self.data_bytes);
        let first = usize::try_from(begin & (self.data_bytes as u64 - 1)).unwrap_or(0);
        for (offset, length) in
            [(first, length.min(self.data_bytes - first)), (0, length.saturating_sub(self.data_bytes - first))]
        {
            // SAFETY: within the mapping's data, which follows its first page. The kernel does not write between tail
            // and head, and only the code below moves the tail.
            let piece =
                unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(self.page_bytes + offset), length) };
            records.extend_from_slice(piece);
        }
        tail.store(end, Ordering::Release);
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: an aligned word within the first page of the mapping, which lives as long as `self` and is only
        // accessed atomically.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }
}

impl Drop for PerfRing {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` mapped; nothing else refers to it.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.page_bytes + self.data_bytes);
        }
    }
}
