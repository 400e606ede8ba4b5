//! The kernel's EROFS in front for users: whom it admits, and its kept metadata.
//!
//! A process that decodes a user's images has rendered the metadata. The broker copies it to a directory of root, and has it checked by a
//! process that decodes nothing. The broker reads no byte of an image: its file system may be the user's.

use std::{
    fs::{self, File},
    io::{self, Read, Seek},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

use floe_front::{Identity, KeptImage, KernelRights, UserRules};
use floe_image::ShownName;
use floe_keeper::{Access, can_mount_kept};
use floe_remote_cache::TrustedDirectory;
use rustix::fs::{
    AtFlags, FileType, MemfdFlags, SealFlags, StatxFlags, StatxTimestamp, fcntl_add_seals, ftruncate, memfd_create,
    statx,
};
use sha2::{Digest, Sha256};

use super::{soundness::check_elsewhere, users::User};
use crate::{
    daemon::own_program,
    front::Front,
    kept_front::{BYTES_MAX, make_room, may_be_kept},
    options::Settings,
};

/// The directory of the kept metadata of users in the cache directory; it has one for each.
const DIRECTORY: &str = "fronts-of-users";

/// The name of the file in the directory of its image.
const NAME: &str = "metadata";

/// An image that changed less than this ago could change again without another time.
const STAMP_AGE_MIN: Duration = Duration::from_millis(100);

/// The time after which the kernel aborts the connection behind a user's front if a request has no reply. Until then, a read of
/// somebody else may wait.
pub(super) const REQUEST_TIME_MAX: Duration = Duration::from_secs(120);

/// The largest `deadline=` with which a mount keeps well within that.
const DEADLINE_MAX: Duration = Duration::from_secs(90);

/// `AT_STATX_DONT_SYNC`: statx reports what is known. rustix has no name for it with musl.
const DONT_SYNC: AtFlags = AtFlags::from_bits_retain(0x4000);

/// Whose a front is, and whom it admits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Admission {
    pub(super) account: u32,
    pub(super) rules: UserRules,
}

/// The kept metadata of an image for fronts of one user: `fronts-of-users/USER/IDENTITY/metadata` in the cache directory.
pub(super) struct UserFront {
    /// The directory of the user, and the name of that of the image in it, which exists if something is kept.
    all: PathBuf,
    name: String,
    identity: Identity,
    image: OwnedFd,
    stamp: [u64; 9],
    admission: Admission,
    room: Room,
    kept: Option<KeptImage>,
}

/// The disk space for the kept metadata of a user.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// All of it.
    pub(super) bytes_max: u64,
    /// What mounts hold that has no name any more.
    pub(super) held_bytes: u64,
}

impl Admission {
    /// Whom the front of a user's mount admits: in a mount namespace that `is_users`, all users there whom the modes in the image admit;
    /// elsewhere, that user alone, unless the options admit others. Otherwise, the reason why there is none.
    pub(super) fn of(user: User, settings: &Settings, is_users: bool) -> Result<Self, String> {
        let kernel = &settings.mount.kernel;
        if !kernel.checks_permissions {
            return Err("the kernel's EROFS always checks permissions".to_owned());
        }
        if settings.mount.deadline.is_none_or(|deadline| deadline > DEADLINE_MAX) {
            return Err(format!("the kernel's EROFS needs deadline= of at most {} seconds", DEADLINE_MAX.as_secs()));
        }
        let only_user = match kernel.access {
            Some(Access::All) => None,
            None | Some(Access::Owner) if !is_users => Some(user.uid),
            _ => return Err("the kernel's EROFS lets all users in, unlike private and allow_root".to_owned()),
        };
        Ok(Self { account: user.account, rules: UserRules { only_user, permits_devices: !is_users } })
    }
}

impl UserFront {
    /// The place for an image, which messages call `shown`, in a cache directory, with what is kept there. Otherwise, the reason why
    /// nothing is kept.
    pub(super) fn find(
        (shown, image): (&Path, OwnedFd),
        cache: &Path,
        (admission, room): (Admission, Room),
        settings: &Settings,
    ) -> io::Result<Self> {
        let excluded = || io::Error::other("this image or its options exclude it");
        if !may_be_kept(shown, settings) {
            return Err(excluded());
        }
        let mut stamp = stamp_of(&image)?.ok_or_else(excluded)?;
        if settings.front == Front::Kernel && !is_settled(&stamp) {
            thread::sleep(STAMP_AGE_MIN);
            stamp = stamp_of(&image)?.ok_or_else(excluded)?;
        }
        if !is_settled(&stamp) {
            return Err(io::Error::other("it was changed just now"));
        }
        let identity = identity_of(&stamp, admission, settings);
        let name: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
        let all = cache.join(DIRECTORY).join(admission.account.to_string());
        let found = TrustedDirectory::open(&all, &name).and_then(|directory| directory.read_file(NAME));
        let kept = found.and_then(|file| KeptImage::verify(file, &identity)).ok();
        if let Some(kept) = &kept {
            // The time of the last use.
            let _ = kept.file().set_modified(SystemTime::now());
        }
        Ok(Self { all, name, identity, image, stamp, admission, room, kept })
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(super) fn admission(&self) -> Admission {
        self.admission
    }

    /// The kept metadata, in a file that the kernel may mount.
    pub(super) fn file(&self) -> Option<&File> {
        self.kept.as_ref().map(KeptImage::file)
    }

    /// A file for the process that renders the metadata. It cannot grow.
    ///
    /// # Errors
    /// There is no memory, or there are no descriptors left.
    pub(super) fn file_to_render() -> io::Result<File> {
        let file = memfd_create("floe-front", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, BYTES_MAX)?;
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file.into())
    }

    /// Keeps a copy of what a process of the user has rendered, if the kernel may mount it. That process cannot change the copy.
    ///
    /// # Errors
    /// It is not whole, or breaks a rule; the image has changed meanwhile; or there is no room for it.
    pub(super) fn keep_copy(&mut self, rendered: &File) -> io::Result<()> {
        let bytes = rendered.metadata()?.len().min(BYTES_MAX);
        self.check_room(bytes)?;
        let directory = TrustedDirectory::create(&self.all, &self.name)?;
        let (unfinished, mut copy) = directory.new_file()?;
        let mut kept = || -> io::Result<KeptImage> {
            let mut rendered = rendered;
            rendered.rewind()?;
            io::copy(&mut rendered.take(bytes), &mut copy)?;
            let kept = KeptImage::verify(directory.read_file(&unfinished)?, &self.identity)?;
            let rules = Some(self.admission.rules);
            check_elsewhere(&own_program(), kept.file().as_fd(), KernelRights::default(), rules)?;
            if !can_mount_kept(kept.file().as_fd()) {
                return Err(io::Error::other("the kernel cannot mount files in the cache directory"));
            }
            if stamp_of(&self.image)? != Some(self.stamp) {
                return Err(io::Error::other("the image has changed"));
            }
            directory.rename(&unfinished, &directory, NAME)?;
            Ok(kept)
        };
        let kept = kept().inspect_err(|_| {
            let _ = directory.remove_file(&unfinished);
            // A user could have any number of directories made. Others may have kept something there.
            let _ = fs::remove_dir(directory.path());
        });
        self.kept = Some(kept?);
        Ok(())
    }

    /// Checks that there is room for another file, and makes it.
    fn check_room(&self, bytes: u64) -> io::Result<()> {
        let Room { bytes_max, held_bytes } = self.room;
        let left = bytes_max.saturating_sub(held_bytes);
        let used = make_room(&self.all, &self.name, bytes, left);
        if used.saturating_add(bytes) > left {
            return Err(io::Error::other(format!(
                "{} has no room for it (floe serve --users=fronts=SIZE)",
                self.all.shown()
            )));
        }
        Ok(())
    }
}

/// What changes with each change of a file, as far as the kernel knows it without asking its file system; `None` if it is no regular
/// file.
fn stamp_of(image: &OwnedFd) -> io::Result<Option<[u64; 9]>> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = statx(image, c"", AtFlags::EMPTY_PATH | DONT_SYNC, wanted)?;
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::RegularFile {
        return Ok(None);
    }
    let time = |time: StatxTimestamp| [time.tv_sec.cast_unsigned(), u64::from(time.tv_nsec)];
    let ([modified, modified_ns], [changed, changed_ns]) = (time(stat.stx_mtime), time(stat.stx_ctime));
    let [born, born_ns] = time(stat.stx_btime);
    let device = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
    Ok(Some([device, stat.stx_ino, stat.stx_size, modified, modified_ns, changed, changed_ns, born, born_ns]))
}

/// Whether any further change gives another stamp.
fn is_settled(stamp: &[u64; 9]) -> bool {
    let [.., seconds, nanoseconds, _, _] = *stamp;
    let Some(nanoseconds) = u32::try_from(nanoseconds).ok().filter(|it| *it < 1_000_000_000) else { return false };
    let changed = SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds));
    let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
    age.is_some_and(|age| age >= STAMP_AGE_MIN)
}

fn identity_of(stamp: &[u64; 9], admission: Admission, settings: &Settings) -> Identity {
    let UserRules { only_user, permits_devices } = admission.rules;
    let mut digest = Sha256::new().chain_update(env!("CARGO_PKG_VERSION")).chain_update([u8::from(permits_devices)]);
    let numbers = [settings.mount.uid, settings.mount.gid, only_user].map(|id| id.map_or(u64::MAX, u64::from));
    for number in numbers.into_iter().chain([admission.account.into()]).chain(*stamp) {
        digest.update(number.to_le_bytes());
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{options::Strictness, service::users::Owner};

    #[test]
    fn a_front_admits_whom_the_options_admit() {
        let Owner::User(user) = Owner::of_user(1000, 1000, 1) else { panic!("another user") };
        for (options, is_users, expected) in [
            ("", false, Some(Some(1000))),
            ("access=private", false, Some(Some(1000))),
            ("allow_other", false, Some(None)),
            ("allow_root", false, None),
            ("", true, None),
            ("access=private", true, None),
            ("allow_other", true, Some(None)),
            ("allow_other,deadline=90s", true, Some(None)),
            ("deadline=91s", false, None),
            ("deadline=off", false, None),
        ] {
            let mut settings = Settings::default();
            settings.take_list(options, Strictness::MountHelper).expect("options");
            let admission = Admission::of(user, &settings, is_users);
            let found = admission.as_ref().ok().map(|admission| admission.rules.only_user);
            assert_eq!(found, expected, "{options}, {is_users}: {admission:?}");
            assert!(admission.is_ok_and(|admission| admission.rules.permits_devices != is_users) || expected.is_none());
        }
    }

    #[test]
    fn each_change_gives_another_identity() {
        let rules = |only_user, permits_devices| UserRules { only_user, permits_devices };
        let admission = |account, rules| Admission { account, rules };
        let (settings, stamp) = (Settings::default(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let mut identities = vec![
            identity_of(&stamp, admission(7, rules(None, false)), &settings),
            identity_of(&stamp, admission(8, rules(None, false)), &settings),
            identity_of(&stamp, admission(7, rules(None, true)), &settings),
            identity_of(&stamp, admission(7, rules(Some(7), true)), &settings),
        ];
        for index in 0..stamp.len() {
            let mut other = stamp;
            other[index] += 100;
            identities.push(identity_of(&other, admission(7, rules(None, false)), &settings));
        }
        for option in ["uid=3", "gid=3"] {
            let mut settings = Settings::default();
            settings.take_list(option, Strictness::MountHelper).expect("an option");
            identities.push(identity_of(&stamp, admission(7, rules(None, false)), &settings));
        }
        let count = identities.len();
        identities.sort_unstable();
        identities.dedup();
        assert_eq!(identities.len(), count);
    }
}
