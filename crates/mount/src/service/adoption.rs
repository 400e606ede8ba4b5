//! Adopts the domains of an earlier broker, with their mounts.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use floe_image::ShownName;
use floe_keeper::KeptMount;
use rustix::{
    fs::{AtFlags, FileType, StatxFlags, statx},
    io::Errno,
    net::sockopt::socket_acceptconn,
};

use super::{
    domain_directory::{DomainDirectory, Found, NUMBER_MAX},
    domain_process::DomainProcess,
    kept_image::{Attaching, FrontForUser, KeptFiles, KeptImage, Stage},
    ledger::{Domain, Ledger, Watched},
    messages::{Order, Report, version},
    mounting::{DONT_SYNC, check_file},
    record::{Record, path},
    record_key::RecordKey,
    settings::{has_rings, settings_of_request},
    users::Owner,
};
use crate::{control, prepared::schedule_of, remote, sealed_file::SealedFile};

/// How long a domain may take for each message, and for all of them. Clients wait meanwhile.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
const ALL_ANSWERS_TIME_MAX: Duration = Duration::from_secs(3);

/// How long clients wait for all adoptions.
const ADOPTION_TIME_MAX: Duration = Duration::from_secs(10);

/// The device number of `/dev/fuse`.
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// The answer of a domain.
struct Introduction {
    process: DomainProcess,
    mounts: BTreeMap<u64, Kept>,
    /// The number of mounts that cannot be adopted, and the reason for the first one.
    unmanaged: Option<(usize, String)>,
}

/// A mount of a domain.
struct Kept {
    record: Record,
    files: KeptFiles,
    format: String,
    is_served: bool,
}

impl Ledger {
    /// Adopts all domains that have a socket in the directory, each on a thread of its own: closing a descriptor that the process of
    /// another user has passed may take as long as that user likes. What cannot be adopted stays as it is, and is reported.
    pub(super) fn adopt_all(self: &Arc<Self>) {
        let Some(directory) = &self.directory else { return };
        let (numbers, others) = match directory.list() {
            Ok(listed) => listed,
            Err(error) => return self.remark(format_args!("cannot look for mounts of an earlier service: {error}")),
        };
        for other in others {
            self.remark(format_args!("{}: not a socket of this service: it is ignored", other.shown()));
        }
        self.reserve_numbers(numbers.last().copied().unwrap_or(0));
        let numbers: Vec<u64> = {
            // An earlier program of this process has left some.
            let state = self.state.lock();
            numbers.into_iter().filter(|number| !state.domains.contains_key(number)).collect()
        };
        let (sender, adopted) = mpsc::channel::<()>();
        for number in numbers {
            let (ledger, sender) = (Arc::clone(self), sender.clone());
            let work = move || {
                ledger.adopt_or_report(number);
                drop(sender);
            };
            if let Err(error) = thread::Builder::new().name("floe-adopt".to_owned()).spawn(work) {
                let path = directory.path_of(number);
                self.remark(format_args!("{}: its mounts are served, but not managed: {error}", path.shown()));
            }
        }
        drop(sender);
        // No thread sends anything: this is the end of the last one, or of the time.
        let _ = adopted.recv_timeout(ADOPTION_TIME_MAX);
    }

    fn adopt_or_report(self: &Arc<Self>, number: u64) {
        let Some(directory) = &self.directory else { return };
        if let Err(error) = self.adopt(directory, number) {
            let path = directory.path_of(number);
            self.remark(format_args!("{}: its mounts are served, but not managed: {error}", path.shown()));
        }
    }

    /// Adopts a domain.
    ///
    /// # Errors
    /// It does not answer, breaks the protocol, or belongs to another user than its mounts, or to one whom this service does not serve. It is
    /// left alone then.
    fn adopt(self: &Arc<Self>, directory: &DomainDirectory, number: u64) -> io::Result<()> {
        let introduction = match directory.connect(number, ANSWER_TIME_MAX)? {
            Found::Listening(socket) => Introduction::of(socket, &self.key)?,
            Found::Leftover => None,
        };
        let Some(introduction) = introduction else {
            directory.remove(number);
            return Ok(());
        };
        let owner = introduction.owner()?;
        let Introduction { mut process, mounts, mut unmanaged } = introduction;
        match (owner, &self.users) {
            (Owner::Service, _) => {}
            (Owner::User(_), Some(limits)) => process.take_group(limits),
            (Owner::User(_), None) => return Err(io::Error::other("the service does not serve other users any more")),
        }
        let process = Arc::new(process);
        let mut domain = Domain::new(Arc::clone(&process), owner, 1);
        domain.has_unmanaged = unmanaged.is_some();
        domain.has_rings = mounts.values().any(|kept| has_rings(&kept.record.request));
        self.state.lock().domains.insert(number, domain);
        let (mut continued, mut unfinished, mut count) = (Vec::new(), Vec::new(), 0);
        for (mount, kept) in mounts {
            let is_new = kept.format.is_empty();
            match self.adopt_mount(number, &process, kept) {
                Ok(_) if is_new => unfinished.push(mount),
                Ok(waiter) => continued.extend(waiter.map(|waiter| (mount, waiter))),
                Err(error) => {
                    note_unmanaged(&mut unmanaged, &error);
                    self.state.lock().domains.entry(number).and_modify(|domain| domain.has_unmanaged = true);
                    continue;
                }
            }
            count += 1;
        }
        self.watch(process.socket(), Watched::Domain(number))?;
        self.watch(process.end(), Watched::DomainEnd(number))?;
        self.remark(format_args!("process {} of an earlier service goes on with {}", process.id, mounts_of(count)));
        if let Some((count, reason)) = unmanaged {
            let path = directory.path_of(number);
            let mounts = mounts_of(count);
            self.remark(format_args!("{}: {mounts}: served, but not managed: {reason}", path.shown()));
        }
        // The clients of these were told nothing, and take them for failed.
        for mount in unfinished {
            self.take_back(mount);
        }
        let is_of_this_version = process.is_of_this_version();
        if continued.is_empty() && is_of_this_version {
            self.release(number);
            return Ok(());
        }
        let (ledger, activity) = (Arc::clone(self), self.upgrade.activity());
        let work = move || {
            if is_of_this_version {
                ledger.wait_for_continued(continued);
                ledger.release(number);
            } else {
                // It takes no orders. Another one continues its mounts.
                ledger.release(number);
                let remarks = ledger.renew_domain(number);
                remarks.iter().for_each(|remark| ledger.remark(format_args!("{remark}")));
            }
            drop(activity);
        };
        thread::Builder::new().name("floe-restart".to_owned()).spawn(work).map(drop)
    }

    /// Adopts a mount. Returns the receiver of the domain's answer if the image is still being opened.
    fn adopt_mount(&self, domain: u64, process: &DomainProcess, kept: Kept) -> io::Result<Option<Attaching>> {
        let Kept { record, files, format, is_served } = kept;
        let Record { number, ref request, control_inode: [device, inode], terms, .. } = record;
        let owner = record.owner();
        let settings = settings_of_request(request).map_err(|failure| io::Error::other(failure.to_string()))?;
        let schedule = schedule_of(self.priority);
        let (keeper, socket) = KeptMount::new(record.place(), settings.mount.kernel, schedule, false)?;
        let (sender, waiter) = mpsc::channel();
        let replaced = {
            let mut state = self.state.lock();
            match state.mounts.get(&number).map(|kept| matches!(kept.stage, Stage::Served)) {
                None => {}
                // The other one is about to take it over.
                Some(false) if is_served => {}
                Some(true) if !is_served => return Ok(None),
                Some(_) => return Err(io::Error::other("another process serves it, too")),
            }
            self.watch(keeper.socket(), Watched::Mount(number))?;
            let image = KeptImage {
                domain,
                owner,
                stage: if is_served { Stage::Served } else { Stage::Attaching(sender) },
                heir: None,
                keeper,
                request: record.request,
                files,
                launch: None,
                format,
                obstacle: String::new(),
                remarks: Vec::new(),
                end_waiters: Vec::new(),
                control_name: control::Server::of_named(path(&record.control), (device, inode)),
                for_user: FrontForUser { detached: None, terms },
            };
            state.mounts.insert(number, image)
        };
        if let Some(replaced) = replaced {
            // The name is the same one.
            std::mem::forget(replaced.control_name);
        }
        self.reserve_numbers(number);
        // If the domain has ended, that is an event of its own.
        let _ = process.tell(&Order::Keeper { number }, &[socket.as_fd()]);
        Ok((!is_served).then_some(waiter))
    }
}

impl Introduction {
    /// Asks the domain at the other end of a connection for its mounts, whose records an earlier broker has written with this key.
    /// Returns `None` if it has ended instead.
    ///
    /// # Errors
    /// It does not answer, or breaks the protocol.
    fn of(socket: OwnedFd, key: &RecordKey) -> io::Result<Option<Self>> {
        let until = Instant::now() + ALL_ANSWERS_TIME_MAX;
        let mut process = match DomainProcess::connected(socket) {
            Err(error) if is_end(&error) => return Ok(None),
            process => process?,
        };
        let greeted = process.tell(&Order::Adopt { version: version() }, &[]).and_then(|()| process.next_report());
        let count = match greeted {
            Ok((Report::Adopting { version: its, count }, _)) if its == version() || count > 0 => {
                process.version = its;
                count
            }
            Ok((Report::Adopting { .. }, _)) => return Err(io::Error::other("it is another version of Floe")),
            Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
            Err(error) if is_end(&error) => return Ok(None),
            Err(error) => return Err(of_answer(error)),
        };
        let mut introduction = Self { process, mounts: BTreeMap::new(), unmanaged: None };
        for _ in 0..count {
            if Instant::now() > until {
                return Err(of_answer(io::ErrorKind::WouldBlock.into()));
            }
            match introduction.process.next_report() {
                Ok((Report::Kept { number, format, is_served }, descriptors)) => {
                    introduction.add((number, format, is_served), descriptors, key);
                }
                Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
                // It was killed. What it has told is continued.
                Err(error) if is_end(&error) => break,
                Err(error) => return Err(of_answer(error)),
            }
        }
        Ok(Some(introduction))
    }

    /// Whose mounts the domain serves.
    ///
    /// # Errors
    /// Its process does not belong to that user.
    fn owner(&self) -> io::Result<Owner> {
        let owner = self.mounts.values().next().map_or(Owner::Service, |kept| kept.record.owner());
        // One that has ended meanwhile is replaced.
        if let Some(uid) = self.process.user().filter(|uid| *uid != owner.uid()) {
            return Err(io::Error::other(format!("it is a process of user {uid}")));
        }
        Ok(owner)
    }

    /// Adds a mount of the domain, which an attacker may control. Only the record decides later what is unmounted, and which
    /// files are removed.
    fn add(&mut self, of: (u64, String, bool), descriptors: Vec<OwnedFd>, key: &RecordKey) {
        let (number, owner) = (of.0, self.mounts.values().next().map(|kept| kept.record.owner()));
        let kept = Kept::of(of, descriptors, key).and_then(|kept| match self.mounts.entry(number) {
            Entry::Vacant(vacant) if owner.is_none_or(|owner| owner == kept.record.owner()) => {
                vacant.insert(kept);
                Ok(())
            }
            Entry::Vacant(_) => Err(io::Error::other("it is one of another user")),
            Entry::Occupied(_) => Err(io::Error::other("it is named twice")),
        });
        if let Err(error) = kept {
            note_unmanaged(&mut self.unmanaged, &error);
        }
    }
}

impl Kept {
    fn of(
        (number, format, is_served): (u64, String, bool),
        descriptors: Vec<OwnedFd>,
        key: &RecordKey,
    ) -> io::Result<Self> {
        let wrong = |what: String| io::Error::other(what);
        let missing = || wrong("descriptors are missing (ulimit -n)".to_owned());
        let sealed = SealedFile::of(descriptors.get(KeptFiles::RECORD).ok_or_else(missing)?.try_clone()?);
        let sealed = sealed.map_err(|_| wrong("its record is not one of a service".to_owned()))?;
        let record =
            Record::read_from(&sealed, key).map_err(|error| wrong(format!("its record is damaged: {error}")))?;
        let files = KeptFiles::of(descriptors, record.request.devices.len()).ok_or_else(missing)?;
        if record.number != number || number > NUMBER_MAX || record.is_front != files.metadata.is_some() {
            return Err(wrong("its record is that of another mount".to_owned()));
        }
        let is_remote = remote::is_url(&path(&record.request.image));
        check_types(&files, is_remote).map_err(wrong)?;
        Ok(Self { record, files, format, is_served })
    }
}

fn note_unmanaged(unmanaged: &mut Option<(usize, String)>, error: &io::Error) {
    unmanaged.get_or_insert_with(|| (0, error.to_string())).0 += 1;
}

fn mounts_of(count: usize) -> String {
    if count == 1 { "its mount".to_owned() } else { format!("its {count} mounts") }
}

/// Whether an error means that the process at the other end has ended.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | BrokenPipe | ConnectionReset)
}

/// The error of a process that does not answer.
fn of_answer(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::Error::other("it does not answer") } else { error }
}

/// Checks the types of a mount's descriptors. That of a remote image is a connection.
fn check_types(files: &KeptFiles, is_remote: bool) -> Result<(), String> {
    let KeptFiles { device, state, control, record: _, image, devices, metadata } = files;
    // The program that serves a file may hang.
    let type_of = |file: &OwnedFd| {
        let stat = statx(file, c"", AtFlags::EMPTY_PATH | DONT_SYNC, StatxFlags::TYPE)?;
        let number = (stat.stx_rdev_major, stat.stx_rdev_minor);
        Ok::<_, Errno>((FileType::from_raw_mode(stat.stx_mode.into()), number))
    };
    let is_device = |(file_type, number)| file_type == FileType::CharacterDevice && number == FUSE_DEVICE;
    if !type_of(device).is_ok_and(is_device) {
        return Err("its connection is none of FUSE".to_owned());
    }
    if !type_of(state).is_ok_and(|(file_type, _)| file_type == FileType::RegularFile) {
        return Err("its state is not in a memory file".to_owned());
    }
    if socket_acceptconn(control) != Ok(true) {
        return Err("its control socket does not listen".to_owned());
    }
    if is_remote && !type_of(image).is_ok_and(|(file_type, _)| file_type == FileType::Socket) {
        return Err("its image is no connection".to_owned());
    }
    let image = (!is_remote).then_some(image);
    image.into_iter().chain(devices).chain(metadata).try_for_each(check_file)
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::net::{UnixListener, UnixStream},
        path::Path,
    };

    use floe_ipc::protocol::MountRequest;
    use rustix::fs::{CWD, Mode, OFlags, openat};

    use super::*;
    use crate::handover::StateFile;

    fn open(path: &Path, flags: OFlags) -> OwnedFd {
        openat(CWD, path, flags, Mode::empty()).expect("it is there")
    }

    fn record(number: u64, key: &RecordKey) -> OwnedFd {
        let request = MountRequest {
            image: b"/image".to_vec(),
            devices: Vec::new(),
            options: "nodev".to_owned(),
            target: floe_ipc::protocol::MountTarget::Directory,
        };
        let (directory, control) = (b"/mnt".to_vec(), b"/run/floe/0-7.sock".to_vec());
        let (place, control_inode) = ([1; 7], [1, 2]);
        let (is_front, user, terms) = (false, None, None);
        let record = Record { number, request, directory, place, control, control_inode, is_front, user, terms };
        record.seal(key).expect("memory").into()
    }

    #[test]
    fn only_what_a_broker_has_written_down_is_adopted() {
        let fuse = Path::new("/dev/fuse");
        if !fuse.exists() {
            return;
        }
        let folder = tempfile::tempdir().expect("a directory");
        let image = folder.path().join("image");
        std::fs::write(&image, "bytes").expect("ours");
        let listener = UnixListener::bind(folder.path().join("socket")).expect("a socket");
        let [key, another_key] = [(); 2].map(|()| RecordKey::random().expect("random bytes"));
        let record = |number| record(number, &key);
        let unsealed = || {
            let file = StateFile::create().expect("memory");
            let bytes = SealedFile::of(record(7)).expect("sealed").bytes(1 << 20).expect("readable");
            std::io::Write::write_all(&mut &file, &bytes).expect("there is room");
            OwnedFd::from(file)
        };
        let good = || -> [OwnedFd; 5] {
            [
                open(fuse, OFlags::RDWR),
                StateFile::create().expect("memory").into(),
                listener.try_clone().expect("a descriptor").into(),
                record(7),
                open(&image, OFlags::RDONLY),
            ]
        };
        let check = |what: &str, number: u64, descriptors: Vec<OwnedFd>, is_right: bool| {
            let kept = Kept::of((number, "EROFS".to_owned(), true), descriptors, &key);
            assert_eq!(kept.is_ok(), is_right, "{what}: {:?}", kept.err());
        };
        check("all", 7, good().into(), true);
        check("the number of another mount", 8, good().into(), false);
        check("nothing", 7, Vec::new(), false);
        check("no image", 7, good().into_iter().take(4).collect(), false);
        check("a device too many", 7, good().into_iter().chain([open(&image, OFlags::RDONLY)]).collect(), false);
        let other = UnixStream::pair().expect("sockets").0;
        let rows: Vec<(&str, usize, OwnedFd)> = vec![
            ("another device", 0, open(Path::new("/dev/null"), OFlags::RDWR)),
            ("a file as the connection", 0, open(&image, OFlags::RDONLY)),
            ("a pipe as the state", 1, std::io::pipe().expect("a pipe").0.into()),
            ("a connected socket", 2, other.into()),
            ("a file as the socket", 2, open(&image, OFlags::RDONLY)),
            ("a record that is not sealed", 3, unsealed()),
            ("a file as the record", 3, open(&image, OFlags::RDONLY)),
            ("the record of another mount", 3, record(8)),
            ("a record of another service", 3, super::tests::record(7, &another_key)),
            ("a writable image", 4, open(&image, OFlags::RDWR)),
            ("a directory as the image", 4, open(folder.path(), OFlags::RDONLY)),
        ];
        for (what, index, descriptor) in rows {
            let mut descriptors = good();
            descriptors[index] = descriptor;
            check(what, 7, descriptors.into(), false);
        }
    }
}
