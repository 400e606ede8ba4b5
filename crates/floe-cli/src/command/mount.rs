//! `floe mount`: mounts an image and serves it.

use std::{
    io::{self, Write},
    mem,
    num::NonZero,
    path::{Path, PathBuf},
    process,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use floe::{Image, Offset};
use floe_fuse::{Access, Detach, Ended, Keeper, Mountpoint, UnmountError, Unmounter};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    account::AccountFile,
    confinement::{self, SandboxArguments},
    control,
    daemon::{self, Report, Role},
    ending_signals::heeded,
    exit::Exit,
    fail::Fail,
    fault_log,
    front::Fronted,
    idle::unmount_when_idle,
    mount_needs::MountNeeds,
    mount_users::MountUsers,
    output::remark,
    quantity, status,
    switches::{Strictness, Switches},
};

/// Mount an image on a directory, until it is unmounted or interrupted
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The image: a file or a block device
    image: PathBuf,
    /// The directory to mount on; /dev/fd/N for an open descriptor of /dev/fuse
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Serve in the background, and return when the mount works
    #[arg(short = 'd', long)]
    daemon: bool,
    /// Where in the file the image begins, in bytes, or "auto"
    #[arg(long, value_name = "BYTES", value_parser = offset)]
    offset: Option<Offset>,
    /// An extra device of an EROFS image, in the order of its table; may be given several times
    #[arg(long, value_name = "FILE")]
    device: Vec<PathBuf>,
    /// Where extra devices of an EROFS image are that are not given by --device, under the names in its table
    #[arg(long, value_name = "DIR")]
    device_directory: Option<PathBuf>,
    /// The budget of the cache of decoded blocks
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    cache: Option<u64>,
    /// How many threads take requests [default: the number of CPUs, at least 4]
    #[arg(long, value_name = "N")]
    threads: Option<NonZero<usize>>,
    /// Let other users in (the default for root)
    #[arg(long)]
    allow_other: bool,
    /// Options as in fstab: key=value,…
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    #[command(flatten)]
    sandbox: SandboxArguments,
}

const HELP: &str = "\
Options for -o, beside those of mount(8) and of FUSE that a read-only image has anyway:
  front=auto|kernel|fuse what stands between the image and its readers: the kernel's EROFS, which needs the right
                         to mount and Linux 6.12, or FUSE alone; auto: the first where it is possible
  cache=SIZE             the budget of the cache of decoded blocks [64M]
  metadata-cache=N       the metadata cache, in blocks of 8 KiB; single-lock:N has one lock
  decoder-memory=SIZE    the budget of the dictionaries and windows of decoders [8M for each CPU]
  read-memory=SIZE       the budget of reads that wait for the source or for decoders [64M]
  reserved-pages=N       how many pages of 4 KiB are held in reserve
  workers=per-cpu|shared|inline
  priority=auto|fifo[:N]|nice[:N]|normal
                         how threads are scheduled; auto: real-time where allowed, those that take
                         requests only while CPUs are short
  sync-decompress=auto|always|never
  read-around, noread-around, readahead-alloc=best-effort|wait
  prefetch=all|none|KIND+KIND...
                         the kinds: sequential, directory, clustered, rest-of-block, drop-behind [all]
  fetch-around=SIZE|off  what comes of the image with bytes that had to be waited for [128k]
  overflow=SIZE|off      when the cache is full, keep costly blocks that many files share, decoded, in a file
                         without a name [off]
  overflow-directory=DIR where that file is; not in memory [the directory of the image]
  offset=BYTES|auto      where the image begins
  device=FILE            an extra device of an EROFS image
  device-directory=DIR   where the other extra devices are, under the names that the image gives them
  threads=N, clone_fd, max_background=N
  read-ahead=SIZE        how far the kernel reads ahead; beyond 128k for root only
  readdir=plus|plain|auto
  deadline=TIME|off      when a request that the source holds up gets EIO [60s]
  linger=TIME|off        how long a thread looks for a program's next request before it sleeps [50us]
  allow_other, private   let other users in or not; root's mounts are open, as the kernel's are
  allow_root             let root in, beside the user who mounts
  acl, noacl             whether access control lists in the image decide too [acl]
  uid=N, gid=N           the owner and the group of everything
  suid, dev              set-user-id bits and device files in the image have effect, for root's mounts [nosuid,nodev]
  noexec, nosymfollow, auto_unmount, fsname=NAME, subtype=NAME, context=...
  sandbox=auto|require|off, no-sandbox
                         whether the process that reads the image is confined [auto]
  account=FILE           write what floe status --json says, at the mount's end
  decode-marks=FILE      write a line after each decode: for tracing's trace_marker

On SIGINT, SIGTERM and SIGHUP the image is unmounted, unless they were ignored from the start
(nohup). While somebody uses it, it only disappears from the tree, and is served until they are
done; a second signal ends it at once.

Exit codes:
  0  it was unmounted; with --daemon: it works
  1  it could not be mounted
  2  wrong usage
  3  the file is no image, or the image is broken or uses what this version does not know";

/// A mount to make.
pub(crate) struct Order {
    pub(crate) image: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) switches: Switches,
    pub(crate) in_background: bool,
    /// Unmount when nobody used the mount for so long.
    pub(crate) idle: Option<Duration>,
    /// A pipe that is told when the mount works.
    pub(crate) notify_pipe: Option<PathBuf>,
}

impl Order {
    /// A mount in the foreground that stays until somebody unmounts it.
    pub(crate) fn new(image: impl Into<PathBuf>, directory: impl Into<PathBuf>, switches: Switches) -> Self {
        let (image, directory) = (image.into(), directory.into());
        Self { image, directory, switches, in_background: false, idle: None, notify_pipe: None }
    }
}

/// Runs the command.
///
/// # Errors
/// The image cannot be mounted.
pub(crate) fn run(arguments: Arguments) -> Result<u8, Fail> {
    let mut switches = Switches { sandbox: arguments.sandbox.mode(), ..Switches::default() };
    for list in &arguments.options {
        switches.take_list(list, Strictness::User)?;
    }
    if let Some(offset) = arguments.offset {
        switches.open.offset = offset;
    }
    if let Some(cache_bytes) = arguments.cache {
        switches.open.engine.cache_bytes = cache_bytes;
    }
    if let Some(threads) = arguments.threads {
        switches.mount.threads = threads;
    }
    if arguments.allow_other {
        switches.mount.access = Some(Access::All);
    }
    switches.open.devices.extend(arguments.device);
    if arguments.device_directory.is_some() {
        switches.open.device_directory = arguments.device_directory;
    }
    let Arguments { image, directory, daemon: in_background, .. } = arguments;
    fulfil(Order { in_background, ..Order::new(image, directory, switches) })
}

/// Mounts, and serves until the end; in the background if that is wanted. Gives the exit code.
///
/// # Errors
/// The image cannot be mounted.
pub(crate) fn fulfil(order: Order) -> Result<u8, Fail> {
    let report = match order.in_background.then(daemon::start).transpose()? {
        None => None,
        Some(Role::Background(report)) => Some(report),
        Some(Role::Foreground(code)) => return Ok(code),
    };
    serve(order, report).map(Exit::code)
}

fn serve(order: Order, report: Option<Report>) -> Result<Exit, Fail> {
    let Order { image: path, directory, switches, idle, notify_pipe, .. } = order;
    let Switches { mut open, mount: mut options, source, account, decode_marks, front, sandbox } = switches;
    let mountpoint = Mountpoint::find(&directory)?;
    let (shown_path, shown) = (absolute(&path), absolute(&directory));
    options.source = source.unwrap_or_else(|| shown_path.to_string_lossy().into_owned());
    options.faults = Some(fault_log::to_stderr());
    let pipe = notify_pipe.as_deref();
    let mut needs = MountNeeds::prepare(&path, &mountpoint, &mut open, &mut options, pipe, front, sandbox)?;
    let account = account.map(AccountFile::create).transpose()?;
    let marks = decode_marks.map(|path| {
        let marks = std::fs::OpenOptions::new().write(true).open(&path);
        marks.map_err(|error| Fail::failed(format!("cannot open {}: {error}", path.display())))
    });
    let marks = marks.transpose()?;
    #[cfg(debug_assertions)]
    crate::compromised::on_a_read(&mut options);
    let (files, enforced) = confinement::open(&path, &open, mem::take(&mut needs.policy), sandbox)??;
    let image = Image::of(files, &open.engine)?;
    if let Some(marks) = marks {
        image.reader().engine().mark_decodes(marks);
    }
    // From here on signals wait for the mount, so that none leaves it behind.
    let signals = Signals::new(heeded(&[SIGINT, SIGTERM, SIGHUP]));
    let signals = signals.map_err(|error| Fail::failed(format!("cannot watch for signals: {error}")))?;
    let Fronted { mount, reader, report: front } = front.mount(&image, mountpoint, &options)?;
    if let Some(refusal) = mount.read_ahead_refusal() {
        eprintln!("floe: the kernel reads ahead as far as before: {refusal}");
    }
    if let Some(refusal) = image.reader().engine().overflow_refusal() {
        eprintln!("floe: nothing overflows into a file: {refusal}; name another one with -o overflow-directory=DIR");
    }
    let unmounter = mount.unmounter();
    unmount_on_signals(signals, unmounter.clone(), shown.clone(), needs.keeper.clone());
    let device = unmounter.device();
    let source = Arc::new(status::Source {
        image: image.clone(),
        reader,
        path: shown_path,
        devices: image.device_paths().to_vec(),
        mountpoint: shown.clone(),
        device: device.unwrap_or_default(),
        options,
        front,
        requests: mount.request_counts(),
        started: Instant::now(),
        enforced,
    });
    let control = device.zip(needs.control.take()).map(|(device, prepared)| {
        let source = Arc::clone(&source);
        control::Server::start(prepared?, device, move |question| source.answer(question))
    });
    if let Some(Err(error)) = &control {
        eprintln!("floe: the mount works, but floe status and floe tune will not: {error}");
    }
    say_ready(&path, &shown, image.format(), report).map_err(|error| {
        let _ = unmounter.unmount(Detach::Lazily);
        Fail::failed(format!("nobody waits for the mount any more: {error}"))
    })?;
    // It is only for speed, so that nobody waits for it, nor for a thread that cannot be had.
    let ahead = image.clone();
    let _ = thread::Builder::new().name("floe-launch".to_owned()).spawn(move || ahead.read_ahead_of_launch());
    if let Some(idle) = idle {
        unmount_when_idle(image, unmounter, idle);
    }
    if let Some(pipe) = notify_pipe {
        notify(&pipe, true);
    }
    let ended = mount.wait();
    drop(control);
    if let Some(account) = account {
        account.write(&source)?;
    }
    match ended {
        Ended::Unmounted => Ok(Exit::Done),
        Ended::Stuck => {
            eprintln!("floe: {}: the source of the image is stuck; what waits for it is given up", path.display());
            // Threads that wait in the source would keep the process.
            process::exit(Exit::Done.code().into())
        }
        Ended::Failed(error) => Err(Fail::failed(format!("lost the connection to the kernel: {error}"))),
    }
}

fn say_ready(image: &Path, directory: &Path, format: floe::Format, report: Option<Report>) -> io::Result<()> {
    let message = format!("{} ({format}) is mounted on {}", image.display(), directory.display());
    match report {
        Some(report) => report.works(&message),
        None => {
            remark(format_args!("{message}\n"));
            Ok(())
        }
    }
}

/// Tells who waits at the other end of a pipe, as squashfuse does; if nobody does, there is nobody to tell.
pub(crate) fn notify(pipe: &Path, works: bool) {
    if let Ok(mut pipe) = std::fs::OpenOptions::new().write(true).open(pipe) {
        let _ = pipe.write_all(if works { b"s" } else { b"f" });
    }
}

/// Unmounts on the first signal, and ends the process on the second.
fn unmount_on_signals(mut signals: Signals, unmounter: Unmounter, directory: PathBuf, keeper: Option<Arc<Keeper>>) {
    let users = move |directory: &Path| match &keeper {
        Some(keeper) => keeper.users().unwrap_or_default(),
        None => MountUsers::of(directory).to_string(),
    };
    let work = move || {
        let mut is_second = false;
        for _signal in signals.forever() {
            if is_second {
                process::exit(Exit::Failed.code().into());
            }
            is_second = true;
            let result = match unmounter.unmount(Detach::Never) {
                Err(UnmountError::Busy(_)) => {
                    eprintln!(
                        "floe: {} is in use {}; it is served until they are done, or to a second signal",
                        directory.display(),
                        users(&directory)
                    );
                    unmounter.unmount(Detach::Lazily)
                }
                result => result,
            };
            match result {
                Ok(()) | Err(UnmountError::NotMounted(_)) => {}
                Err(error) => {
                    eprintln!("floe: {error}");
                    is_second = false;
                }
            }
        }
    };
    // Without this thread signals would have no effect; a process without threads has other troubles.
    let _ = thread::Builder::new().name("floe-signals".to_owned()).spawn(work);
}

/// Where an image begins: a number of bytes, or `auto`.
///
/// # Errors
/// It is neither.
pub(crate) fn offset(text: &str) -> Result<Offset, String> {
    match quantity::bytes(text) {
        Ok(at) => Ok(Offset::At(at)),
        Err(_) if text == "auto" => Ok(Offset::Auto),
        Err(_) => Err(format!("'{text}' is neither a number of bytes nor 'auto'")),
    }
}

/// A path that means the same in every working directory.
fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}
