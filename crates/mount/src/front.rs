//! The front of a mount: the kernel's EROFS, or FUSE alone.

use std::{
    fmt,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use floe::{Image, Reader};
use floe_engine::Blocking;
use floe_front::{DataInImage, FrontPart, KeptImage, VirtualImage};
use floe_fuse::{ConnectionTerms, FrontImage, Mount, MountError, MountOptions, MountSetup, MountStart, Mountpoint};
use floe_image::{ByteRange, FileSystem, Nid};
use floe_keeper::{Access, FrontRange, Mounted};
use serde::{Deserialize, Serialize};

use crate::owners::Owners;

/// The value of `front=`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Front {
    /// The kernel's EROFS if possible, else FUSE alone.
    #[default]
    Auto,
    /// The kernel's EROFS.
    Kernel,
    /// FUSE alone.
    Fuse,
}

/// The connection of a hidden mount that the service has made, and the kept metadata for its front.
pub(crate) struct Hidden {
    pub(crate) device: OwnedFd,
    /// The terms of the connection, if the service has negotiated them.
    pub(crate) terms: Option<ConnectionTerms>,
    /// The directory of the front.
    pub(crate) directory: PathBuf,
    pub(crate) kept: KeptImage,
}

/// What a front reads.
pub(crate) struct Behind {
    pub(crate) reader: Reader,
    pub(crate) image: Arc<dyn FrontImage>,
    pub(crate) virtual_image: Arc<VirtualImage>,
}

/// A mounted image.
pub(crate) struct Fronted {
    pub(crate) mount: Mount,
    /// The reader that serves the mount.
    pub(crate) reader: Reader,
    /// The image behind the kernel's EROFS, if that is in front.
    pub(crate) virtual_image: Option<Arc<VirtualImage>>,
    pub(crate) report: FrontReport,
}

/// The front of a mount, and the reason for it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct FrontReport {
    /// `kernel` or `fuse`.
    pub kind: String,
    /// The reason, in one line.
    pub reason: String,
}

impl fmt::Display for Front {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::Kernel => "kernel",
            Self::Fuse => "fuse",
        })
    }
}

impl FromStr for Front {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "kernel" => Ok(Self::Kernel),
            "fuse" => Ok(Self::Fuse),
            _ => Err(format!("'{text}' is not auto, kernel or fuse")),
        }
    }
}

impl Front {
    /// Mounts an image, if possible from the metadata of the front that an earlier mount kept.
    ///
    /// # Errors
    /// The image cannot be mounted, or `front=kernel` was given and the kernel's EROFS cannot be in front.
    pub(crate) fn mount(
        self,
        image: &Image,
        mountpoint: Mountpoint,
        mut setup: MountSetup,
        kept: Option<&KeptImage>,
    ) -> Result<Fronted, MountError> {
        if let (Some(kept), Mountpoint::Directory(directory)) = (kept, &mountpoint) {
            if let Some(fronted) = self.mount_kept(image, directory.path(), &setup, kept) {
                return Ok(fronted);
            }
            // Rings serve one connection.
            setup.handles.rings = None;
        }
        let obstacle = match (self, &mountpoint) {
            (Self::Fuse, _) => Obstacle::Requested,
            (_, Mountpoint::Descriptor(_)) => Obstacle::Options("another program mounts (/dev/fd/N)"),
            (_, Mountpoint::Directory(_)) if !matches!(setup.options.kernel.access, None | Some(Access::All)) => {
                Obstacle::Options("the kernel's EROFS lets all users in, unlike private and allow_root")
            }
            (_, Mountpoint::Directory(_)) if setup.options.user_overlay => Obstacle::Options(FOR_USER_OVERLAY),
            (_, Mountpoint::Directory(directory)) => match virtual_image(image, &setup.options, None) {
                Ok((reader, rendered)) => match in_front(&reader, directory.path(), &setup, &rendered) {
                    Ok(mount) => {
                        let report = FrontReport::kernel(self, &rendered.0);
                        let virtual_image = Some(Arc::clone(&rendered.0));
                        return Ok(Fronted { mount, reader, virtual_image, report });
                    }
                    Err(MountError::Front(refusal)) => Obstacle::Refused(refusal.to_string()),
                    // fusermount3 may be able to open it.
                    Err(MountError::Device(error)) => Obstacle::Refused(format!("cannot open /dev/fuse: {error}")),
                    Err(error) if self == Self::Auto && error.is_no_memory() => Obstacle::Refused(error.to_string()),
                    Err(error) => return Err(error),
                },
                Err(error) => Obstacle::Refused(error.to_string()),
            },
        };
        if self == Self::Kernel {
            return Err(MountError::Front(obstacle.to_string().into()));
        }
        let reader = image.reader().clone();
        let mount = Mount::new(reader.clone(), mountpoint, setup)?;
        Ok(Fronted { mount, reader, virtual_image: None, report: FrontReport::fuse(&obstacle) })
    }

    /// Serves a FUSE mount that the service has made. `obstacle` tells why that is no front.
    ///
    /// # Errors
    /// The image cannot be served.
    pub(crate) fn of_made(
        self,
        image: &Image,
        made: Box<Mounted>,
        obstacle: String,
        setup: MountSetup,
    ) -> Result<Fronted, MountError> {
        let obstacle = match self {
            Self::Fuse => Obstacle::Requested,
            Self::Auto | Self::Kernel => Obstacle::Refused(obstacle),
        };
        let reader = image.reader().clone();
        let mount = Mount::new(reader.clone(), MountStart::Made(made), setup)?;
        Ok(Fronted { mount, reader, virtual_image: None, report: FrontReport::fuse(&obstacle) })
    }

    /// Serves what is behind a front that the service is to mount.
    ///
    /// # Errors
    /// The kept metadata cannot be read, or the service cannot mount the front.
    pub(crate) fn of_hidden(self, image: &Image, hidden: Hidden, setup: MountSetup) -> Result<Fronted, MountError> {
        let Hidden { device, terms, directory, kept } = hidden;
        let (reader, rendered) = virtual_image(image, &setup.options, Some(&kept)).map_err(MountError::Image)?;
        let start = MountStart::Front { directory, image: behind(&rendered), hidden: Some((device, terms)) };
        let mount = Mount::new(reader.clone(), start, setup)?;
        let report = FrontReport::kernel(self, &rendered.0);
        Ok(Fronted { mount, reader, virtual_image: Some(Arc::clone(&rendered.0)), report })
    }

    /// Mounts the kernel's EROFS from the metadata that an earlier mount kept. `None` if that is not possible.
    fn mount_kept(self, image: &Image, directory: &Path, setup: &MountSetup, kept: &KeptImage) -> Option<Fronted> {
        let MountOptions { kernel, user_overlay, .. } = &setup.options;
        if self == Self::Fuse || *user_overlay || !matches!(kernel.access, None | Some(Access::All)) {
            return None;
        }
        let (reader, rendered) = virtual_image(image, &setup.options, Some(kept)).ok()?;
        let mount = in_front(&reader, directory, setup, &rendered).ok()?;
        let report = FrontReport::kernel(self, &rendered.0);
        Some(Fronted { mount, reader, virtual_image: Some(Arc::clone(&rendered.0)), report })
    }
}

fn in_front(
    reader: &Reader,
    directory: &Path,
    setup: &MountSetup,
    rendered: &Arc<Rendered>,
) -> Result<Mount, MountError> {
    let start = MountStart::Front { directory: directory.to_owned(), image: behind(rendered), hidden: None };
    Mount::new(reader.clone(), start, setup.clone())
}

/// What the front of a mount that another process has served reads, from the kept metadata.
///
/// # Errors
/// The kept metadata cannot be read.
pub(crate) fn behind_kept(image: &Image, options: &MountOptions, kept: &KeptImage) -> Result<Behind, MountError> {
    let (reader, rendered) = virtual_image(image, options, Some(kept)).map_err(MountError::Image)?;
    Ok(Behind { reader, image: behind(&rendered), virtual_image: Arc::clone(&rendered.0) })
}

fn behind(rendered: &Arc<Rendered>) -> Arc<dyn FrontImage> {
    Arc::clone(rendered) as Arc<dyn FrontImage>
}

/// Creates the virtual image that the kernel mounts, and its reader.
fn virtual_image(
    image: &Image,
    options: &MountOptions,
    kept: Option<&KeptImage>,
) -> floe_image::Result<(Reader, Arc<Rendered>)> {
    let volume = image.reader().volume();
    let original = original(image, options, None);
    let (waiting, non_blocking) = (volume.block_reader(Blocking::Allowed), volume.block_reader(Blocking::Never));
    let rendered = Arc::new(match kept {
        Some(kept) => VirtualImage::open_kept(original, &waiting, non_blocking, kept)?,
        None => VirtualImage::open(original, &waiting, non_blocking)?,
    });
    let reader = Reader::new(Arc::clone(volume), Arc::clone(&rendered) as Arc<dyn FileSystem>);
    Ok((reader, Arc::new(Rendered(rendered))))
}

/// The image with the owners that the options give it, and with a root directory that admits `only_user`.
pub(crate) fn original(image: &Image, options: &MountOptions, only_user: Option<u32>) -> Arc<dyn FileSystem> {
    let owners = Owners { uid: options.uid, gid: options.gid, only_user };
    owners.of(Arc::clone(image.file_system()))
}

/// The virtual image, as the mount uses it.
struct Rendered(Arc<VirtualImage>);

impl FrontImage for Rendered {
    fn large_file(&self) -> Nid {
        VirtualImage::LARGE_NID
    }

    fn is_kept(&self) -> bool {
        self.0.is_kept()
    }

    fn has_acls(&self) -> bool {
        self.0.has_acls()
    }

    fn address(&self, nid: Nid, offset: u64) -> u64 {
        self.0.address(nid, offset)
    }

    fn files_in(&self, range: ByteRange) -> Option<Vec<FrontRange>> {
        let parts = self.0.files_in(range).ok()??;
        let front_range =
            |part: FrontPart| FrontRange { nid: part.nid, range: part.range, image_offset: part.image_offset };
        Some(parts.into_iter().map(front_range).collect())
    }

    fn file_data_in(&self, range: ByteRange) -> Vec<ByteRange> {
        self.0.file_data_in(range)
    }

    fn originals_in(&self, range: ByteRange) -> Vec<(Nid, ByteRange)> {
        let parts = self.0.files_in(range).ok().flatten().unwrap_or_default();
        parts.into_iter().map(|part| (part.original, part.range)).collect()
    }

    fn metadata_ahead(&self, range: ByteRange) -> Option<Box<dyn Iterator<Item = ByteRange> + Send>> {
        self.0.metadata_ahead(range)
    }
}

impl FrontReport {
    fn kernel(front: Front, image: &VirtualImage) -> Self {
        let cause =
            if front == Front::Kernel { Obstacle::Requested.to_string() } else { "the kernel supports it".to_owned() };
        let sizes = (!image.keeps_directory_sizes()).then_some("; sizes of directories differ from the image");
        let kept = image.is_kept().then_some("; with kept metadata");
        let in_image = match image.data_in_image() {
            DataInImage::None => None,
            DataInImage::Plain => Some("; the kernel reads plain data in the image"),
            DataInImage::Compressed => Some("; the kernel reads plain data and small files in the image"),
        };
        let reason = [Some(cause.as_str()), sizes, kept, in_image].into_iter().flatten().collect();
        Self { kind: "kernel".to_owned(), reason }
    }

    fn fuse(obstacle: &Obstacle) -> Self {
        Self { kind: "fuse".to_owned(), reason: obstacle.to_string() }
    }
}

/// Why a mount for a user namespace has no front.
pub(crate) const FOR_USER_OVERLAY: &str =
    "the kernel's EROFS shows attributes with their own names, unlike overlay-xattrs=user";

/// The reason why the kernel's EROFS is not in front.
enum Obstacle {
    /// `front=fuse` was given.
    Requested,
    /// Other options exclude it.
    Options(&'static str),
    /// The kernel refuses.
    Refused(String),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Requested => "requested by an option",
            Self::Options(reason) => reason,
            Self::Refused(reason) => reason,
        })
    }
}
