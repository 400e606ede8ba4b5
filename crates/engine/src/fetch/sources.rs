//! The sources of one volume, and all reads from them.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use floe_image::{ByteRange, DeviceId, Error, ImageSource, Place, Result};
use floe_sync::RwLock;

use crate::{
    Blocking,
    prefetch::controller::{Controller, Purpose},
};

/// The sources of one volume: the image itself, its extra devices, and sources that the format derives from them.
pub(crate) struct Sources {
    devices: RwLock<Vec<Arc<dyn ImageSource>>>,
    /// Derived sources. Their device numbers count down from `u16::MAX`.
    derived: RwLock<Vec<Arc<dyn ImageSource>>>,
    prefetch: Arc<Controller>,
    fetches: AtomicU64,
    fetched_bytes: AtomicU64,
}

/// A range of stored bytes that were decoded completely, so that the kernel's page cache can drop them (drop-behind).
pub(crate) struct DroppableRange {
    source: Arc<dyn ImageSource>,
    range: ByteRange,
}

impl DroppableRange {
    /// Asks the kernel to drop the bytes from its page cache. May block.
    pub(crate) fn release(self) {
        self.source.dont_need(self.range.offset(), self.range.len());
    }
}

impl Sources {
    /// Creates the sources of a volume. Each read is reported to the controller, which decides how much a miss fetches.
    pub(crate) fn new(devices: Vec<Arc<dyn ImageSource>>, prefetch: Arc<Controller>) -> Self {
        Self {
            devices: RwLock::new(devices),
            derived: RwLock::default(),
            prefetch,
            fetches: AtomicU64::new(0),
            fetched_bytes: AtomicU64::new(0),
        }
    }

    /// Closes the files of all devices; reads from now on fail. A read in progress keeps its file open until it ends.
    pub(crate) fn close(&self) {
        let mut devices = self.devices.write();
        let close =
            |source: &Arc<dyn ImageSource>| Arc::new(ClosedSource { len: source.len() }) as Arc<dyn ImageSource>;
        let closed = devices.iter().map(close).collect();
        let open = std::mem::replace(&mut *devices, closed);
        drop(devices);
        // Closing a file can wait, so no lock is held.
        drop(open);
    }

    /// Adds a source that the format derived from other ones.
    ///
    /// # Errors
    /// `Unsupported` if there are too many.
    pub(crate) fn add_derived(&self, source: Arc<dyn ImageSource>) -> Result<DeviceId> {
        let mut derived = self.derived.write();
        let number = u16::try_from(derived.len()).ok().and_then(|index| u16::MAX.checked_sub(index));
        let number = number.filter(|number| *number >= self.device_count());
        let number = number.ok_or(Error::unsupported("more than 65535 devices and derived sources"))?;
        derived.push(source);
        Ok(DeviceId(number))
    }

    /// The number of devices, including the image itself.
    pub(crate) fn device_count(&self) -> u16 {
        self.devices.read().len() as u16
    }

    /// The length of a source in bytes.
    ///
    /// # Errors
    /// As for [`Sources::source`].
    pub(crate) fn device_len(&self, device: DeviceId) -> Result<u64> {
        self.source(device).map(|source| source.len())
    }

    /// Announces that bytes of a source will be read soon.
    pub(crate) fn will_need(&self, device: DeviceId, offset: u64, len: u64) {
        if let Ok(source) = self.source(device) {
            source.will_need(offset, len);
        }
    }

    /// Fills `output` with bytes of file data, compressed or plain. Returns a range that the page cache can now drop,
    /// if there is one.
    ///
    /// # Errors
    /// The source fails or ends early; `WouldBlock` if the source would have to be waited for and `blocking` forbids
    /// it.
    pub(crate) fn fetch_data(
        &self,
        device: DeviceId,
        offset: u64,
        output: &mut [u8],
        blocking: Blocking,
    ) -> Result<Option<DroppableRange>> {
        self.fill(Purpose::Data, device, offset, output, blocking)?;
        self.fetches.fetch_add(1, Relaxed);
        self.fetched_bytes.fetch_add(output.len() as u64, Relaxed);
        let droppable = self.prefetch.note_decoded(device, ByteRange::new(offset, output.len() as u64));
        droppable.map(|(device, range)| Ok(DroppableRange { source: self.source(device)?, range })).transpose()
    }

    /// Fills `output` with bytes of metadata.
    ///
    /// # Errors
    /// As [`Sources::fetch_data`].
    pub(crate) fn fetch_metadata(
        &self,
        device: DeviceId,
        offset: u64,
        output: &mut [u8],
        blocking: Blocking,
    ) -> Result<()> {
        self.fill(Purpose::Metadata, device, offset, output, blocking)
    }

    /// The number of reads of file data so far, and their bytes.
    pub(crate) fn fetches_and_bytes(&self) -> (u64, u64) {
        (self.fetches.load(Relaxed), self.fetched_bytes.load(Relaxed))
    }

    /// Returns the source of a device.
    ///
    /// # Errors
    /// `Corrupt` if there is no such device.
    pub(crate) fn source(&self, device: DeviceId) -> Result<Arc<dyn ImageSource>> {
        let devices = self.devices.read();
        if let Some(source) = devices.get(usize::from(device.0)) {
            return Ok(Arc::clone(source));
        }
        let derived = self.derived.read();
        let source = derived.get(usize::from(u16::MAX - device.0)).map(Arc::clone);
        source.ok_or(Error::corrupt("no such device", Place { device, ..Place::UNKNOWN }))
    }

    /// Fills `output`. If the read may block, a miss also fetches the bytes around it (fault-around).
    fn fill(
        &self,
        purpose: Purpose,
        device: DeviceId,
        offset: u64,
        output: &mut [u8],
        blocking: Blocking,
    ) -> Result<()> {
        let (source, wanted) = (self.source(device)?, ByteRange::new(offset, output.len() as u64));
        let read = match blocking {
            Blocking::Allowed => {
                let miss = self.prefetch.note_miss(purpose, device, wanted, source.reads_around());
                if let Some(window) = miss.window {
                    source.will_need(window.offset(), window.len());
                }
                let started = Instant::now();
                let read = source.read_at(offset, output).map(|()| true);
                self.prefetch.note_waited(miss, output.len(), started.elapsed());
                read
            }
            Blocking::Never => source.try_read_at(offset, output).inspect(|is_read| {
                if *is_read {
                    self.prefetch.note_hit(purpose, device, wanted);
                }
            }),
        };
        match read {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::WouldBlock),
            Err(error) => Err(Error::io(device, offset, error)),
        }
    }
}

/// Takes the place of a source that was closed.
struct ClosedSource {
    len: u64,
}

impl ImageSource for ClosedSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, _offset: u64, _output: &mut [u8]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::NotConnected, "the image is closed"))
    }
}
