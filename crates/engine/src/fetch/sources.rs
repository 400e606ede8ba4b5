//! The sources of one image, and how bytes are got from them.

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use floe_image::{ByteRange, DeviceId, Error, ImageSource, Place, Result};

use crate::{Blocking, fetch::drop_behind::DropBehind, prefetch::detectors::fault_around::FaultAround};

/// The sources of one image: the image itself, its extra devices, and those that a format makes of them.
pub(crate) struct Sources {
    devices: RwLock<Vec<Arc<dyn ImageSource>>>,
    /// Sources that are made of the other ones, numbered from the last number down.
    derived: RwLock<Vec<Arc<dyn ImageSource>>>,
    data_around: FaultAround,
    metadata_around: FaultAround,
    drop_behind: DropBehind,
    fetches: AtomicU64,
    fetched_bytes: AtomicU64,
}

/// Stored bytes that were all decoded, so that they may leave the page cache.
pub(crate) struct Spent {
    source: Arc<dyn ImageSource>,
    range: ByteRange,
}

impl Spent {
    /// Lets the bytes leave the page cache. May wait.
    pub(crate) fn release(self) {
        self.source.dont_need(self.range.offset(), self.range.len());
    }
}

impl Sources {
    /// The sources of an image; misses bring windows of `fault_around_bytes`.
    pub(crate) fn new(devices: Vec<Arc<dyn ImageSource>>, fault_around_bytes: u64) -> Self {
        Self {
            devices: RwLock::new(devices),
            derived: RwLock::default(),
            data_around: FaultAround::new(fault_around_bytes),
            metadata_around: FaultAround::new(fault_around_bytes),
            drop_behind: DropBehind::new(),
            fetches: AtomicU64::new(0),
            fetched_bytes: AtomicU64::new(0),
        }
    }

    /// Adds the next extra device.
    pub(crate) fn add_device(&self, source: Arc<dyn ImageSource>) {
        self.devices.write().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    /// Adds a source that is made of the other ones.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn add_derived(&self, source: Arc<dyn ImageSource>) -> Result<DeviceId> {
        let mut derived = self.derived.write().unwrap_or_else(PoisonError::into_inner);
        let number = u16::try_from(derived.len()).ok().and_then(|index| u16::MAX.checked_sub(index));
        let number = number.filter(|number| *number >= self.device_count());
        let number = number.ok_or(Error::unsupported("so many sources that are made of other ones"))?;
        derived.push(source);
        Ok(DeviceId(number))
    }

    /// How many devices there are, the image itself among them.
    pub(crate) fn device_count(&self) -> u16 {
        self.devices.read().unwrap_or_else(PoisonError::into_inner).len() as u16
    }

    /// How many bytes a source has.
    pub(crate) fn device_len(&self, device: DeviceId) -> Result<u64> {
        self.source(device).map(|source| source.len())
    }

    /// Has misses bring windows of another size from now on.
    pub(crate) fn set_fault_around(&self, window_bytes: u64) {
        self.data_around.set(window_bytes);
        self.metadata_around.set(window_bytes);
    }

    /// Whether reads of file data stand near each other of late, so that what is beside them will be wanted.
    pub(crate) fn data_is_dense(&self) -> bool {
        self.data_around.is_worthwhile()
    }

    /// Says that bytes of a source will be read soon.
    pub(crate) fn will_need(&self, device: DeviceId, offset: u64, len: u64) {
        if let Ok(source) = self.source(device) {
            source.will_need(offset, len);
        }
    }

    /// Fills `output` with bytes of file data, stored or plain; gives what has been read as a whole.
    ///
    /// # Errors
    /// The source fails or ends before; it would have to be waited for, and `blocking` does not allow that.
    pub(crate) fn fetch_data(
        &self,
        device: DeviceId,
        offset: u64,
        output: &mut [u8],
        blocking: Blocking,
    ) -> Result<Option<Spent>> {
        fill(self.source(device)?.as_ref(), &self.data_around, device, offset, output, blocking)?;
        self.fetches.fetch_add(1, Relaxed);
        self.fetched_bytes.fetch_add(output.len() as u64, Relaxed);
        let spent = self.drop_behind.note(device, ByteRange::new(offset, output.len() as u64));
        spent.map(|(device, range)| Ok(Spent { source: self.source(device)?, range })).transpose()
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
        fill(self.source(device)?.as_ref(), &self.metadata_around, device, offset, output, blocking)
    }

    /// Fetches of file data so far, and the bytes that they brought.
    pub(crate) fn fetches_and_bytes(&self) -> (u64, u64) {
        (self.fetches.load(Relaxed), self.fetched_bytes.load(Relaxed))
    }

    /// The source that is this device.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn source(&self, device: DeviceId) -> Result<Arc<dyn ImageSource>> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = devices.get(usize::from(device.0)) {
            return Ok(Arc::clone(source));
        }
        let derived = self.derived.read().unwrap_or_else(PoisonError::into_inner);
        let source = derived.get(usize::from(u16::MAX - device.0)).map(Arc::clone);
        source.ok_or(Error::corrupt("no such device", Place { device, ..Place::UNKNOWN }))
    }
}

/// Fills `output` from a source; where waiting is allowed, what stands around comes with a miss.
fn fill(
    source: &dyn ImageSource,
    around: &FaultAround,
    device: DeviceId,
    offset: u64,
    output: &mut [u8],
    blocking: Blocking,
) -> Result<()> {
    let wanted = ByteRange::new(offset, output.len() as u64);
    let read = match blocking {
        Blocking::Allowed => {
            if let Some(window) = around.note_miss(device, wanted) {
                source.will_need(window.offset(), window.len());
            }
            source.read_at(offset, output).map(|()| true)
        }
        Blocking::Never => source.try_read_at(offset, output).inspect(|is_read| {
            if *is_read {
                around.note_hit(device, wanted);
            }
        }),
    };
    match read {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::WouldBlock),
        Err(error) => Err(Error::io(device, offset, error)),
    }
}
