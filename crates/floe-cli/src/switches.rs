//! The switches of a mount, as `-o key=value,…` gives them.

use std::{num::NonZero, path::PathBuf, time::Duration};

use floe::{Offset, OpenOptions};
use floe_fuse::{Access, MountOptions, Readdir};
use floe_sandbox::Mode;

use crate::{fail::Fail, front::Front, quantity};

/// What a list of options asks for.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    /// How the image is opened.
    pub(crate) open: OpenOptions,
    /// How it is mounted.
    pub(crate) mount: MountOptions,
    /// The name that the mount table shows, in place of the path of the image.
    pub(crate) source: Option<String>,
    /// Where to write what the mount has done, when it ends.
    pub(crate) account: Option<PathBuf>,
    /// Where to write a line after each decode.
    pub(crate) decode_marks: Option<PathBuf>,
    /// What stands between the image and its readers.
    pub(crate) front: Front,
    /// Whether the process is confined.
    pub(crate) sandbox: Mode,
}

/// Who gives the options, and so which of them are an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Strictness {
    /// A user: what makes no sense is refused.
    User,
    /// mount(8), which adds `rw` by itself.
    MountHelper,
    /// mount(8) with `-s`: what is not known is passed over.
    Sloppy,
}

/// The longest that threads may look for the next request, which costs a CPU all the while.
const LINGER_MAX: Duration = Duration::from_millis(10);

/// Options that say how and when mount(8) mounts, or whose effect a read-only image has anyway.
const WITHOUT_EFFECT: &[&str] = &[
    "ro",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "loop",
    "kernel_cache",
    "auto_cache",
    "noforget",
    "async_read",
    "use_ino",
    "readdir_ino",
    "intr",
    "big_writes",
    "nonempty",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "sync",
    "async",
    "dirsync",
    "mand",
    "nomand",
    "iversion",
    "noiversion",
    "silent",
    "loud",
    "comment",
    "entry_timeout",
    "attr_timeout",
    "negative_timeout",
    "max_read",
];

/// Options of security modules, which go to the kernel as they are.
const FOR_THE_KERNEL: &[&str] = &["context", "fscontext", "defcontext", "rootcontext"];

impl Switches {
    /// Takes a list of options, separated by commas. A comma in a value is quoted, as mount(8) has it
    /// (`context="a,b"`), or has a backslash before it.
    ///
    /// # Errors
    /// An option is not known or its value is none.
    pub(crate) fn take_list(&mut self, list: &str, strictness: Strictness) -> Result<(), Fail> {
        for option in split(list) {
            match option.split_once('=') {
                Some((key, value)) => self.take(key, Some(value), strictness)?,
                None => self.take(&option, None, strictness)?,
            }
        }
        Ok(())
    }

    fn take(&mut self, key: &str, value: Option<&str>, strictness: Strictness) -> Result<(), Fail> {
        if key.is_empty() || key.starts_with("x-") || key.starts_with("X-") || WITHOUT_EFFECT.contains(&key) {
            return Ok(());
        }
        if FOR_THE_KERNEL.contains(&key) {
            self.mount.kernel_options.push(value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}")));
            return Ok(());
        }
        if key == "rw" {
            return match strictness {
                Strictness::User => Err(Fail::usage("images are read-only: leave out -o rw")),
                _ => Ok(()),
            };
        }
        let name = key.replace('_', "-");
        let known = match value {
            None => self.take_flag(&name),
            Some(value) => {
                self.take_value(&name, value).map_err(|reason| Fail::usage(format!("-o {key}: {reason}")))?
            }
        };
        match (known, strictness) {
            (true, _) | (false, Strictness::Sloppy) => Ok(()),
            (false, _) if value.is_none() && Self::default().take_value(&name, "").is_err() => {
                Err(Fail::usage(format!("-o {key} needs a value: -o {key}=…")))
            }
            (false, _) => Err(Fail::usage(format!("no such option: -o {key} (see floe mount --help)"))),
        }
    }

    fn take_flag(&mut self, name: &str) -> bool {
        let Self { mount, open, .. } = self;
        let flags = &mut mount.flags;
        match name {
            "allow-other" => mount.access = Some(Access::All),
            "allow-root" => mount.access = Some(Access::OwnerAndRoot),
            "private" => mount.access = Some(Access::Owner),
            "default-permissions" => mount.checks_permissions = true,
            "acl" => mount.acl = true,
            "noacl" => mount.acl = false,
            "suid" => flags.nosuid = false,
            "nosuid" => flags.nosuid = true,
            "dev" => flags.nodev = false,
            "nodev" => flags.nodev = true,
            "exec" => flags.noexec = false,
            "noexec" => flags.noexec = true,
            "symfollow" => flags.nosymfollow = false,
            "nosymfollow" => flags.nosymfollow = true,
            "auto-unmount" => mount.auto_unmount = true,
            "clone-fd" => mount.clone_fd = true,
            "no-sandbox" => self.sandbox = Mode::Off,
            "read-around" => open.engine.read_around = true,
            "noread-around" => open.engine.read_around = false,
            _ => return false,
        }
        true
    }

    /// Moves a switch of the engine of a mount that runs.
    ///
    /// # Errors
    /// It does not take the value.
    pub(crate) fn take_tunable(&mut self, name: &str, value: &str) -> Result<(), String> {
        match (name, value) {
            ("read-around", "on") => self.open.engine.read_around = true,
            ("read-around", "off") => self.open.engine.read_around = false,
            ("read-around", _) => return Err(format!("'{value}' is not on or off")),
            _ => drop(self.take_value(name, value)?),
        }
        Ok(())
    }

    /// Sets a switch; gives whether there is such a one.
    fn take_value(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let Self { mount, open, source, account, decode_marks, front, sandbox } = self;
        let engine = &mut open.engine;
        match name {
            "cache" => engine.cache_bytes = quantity::bytes(value)?,
            "decoder-memory" => engine.decoder_bytes = quantity::bytes(value)?,
            "read-memory" => engine.read_bytes = quantity::bytes(value)?,
            "reserved-pages" => engine.reserved_pages = number(value)?,
            "metadata-cache" => engine.metadata_cache = parsed(value)?,
            "workers" => engine.workers = parsed(value)?,
            "priority" => engine.priority = parsed(value)?,
            "sync-decompress" => engine.sync_decompress = parsed(value)?,
            "prefetch" => engine.prefetch = parsed(value)?,
            "readahead-alloc" => engine.readahead_alloc = parsed(value)?,
            "overflow" if value == "off" => engine.overflow_bytes = 0,
            "overflow" => engine.overflow_bytes = quantity::bytes(value)?,
            "overflow-directory" => engine.overflow_directory = Some(value.into()),
            "fetch-around" if value == "off" => engine.fetch_around_bytes = 0,
            "fetch-around" => engine.fetch_around_bytes = quantity::bytes(value)?,
            "offset" if value == "auto" => open.offset = Offset::Auto,
            "offset" => open.offset = Offset::At(quantity::bytes(value)?),
            "device" => open.devices.push(PathBuf::from(value)),
            "device-directory" => open.device_directory = Some(PathBuf::from(value)),
            "threads" => mount.threads = number(value)?,
            "max-background" => mount.background_max = number(value)?,
            "read-ahead" => {
                let bytes = u32::try_from(quantity::bytes(value)?);
                mount.read_ahead_bytes = Some(bytes.map_err(|_| format!("{value} is more than 4 GiB"))?);
            }
            "readdir" => {
                mount.readdir = match value {
                    "plain" => Readdir::Plain,
                    "plus" => Readdir::Plus,
                    "auto" => Readdir::Auto,
                    _ => return Err(format!("'{value}' is not plain, plus or auto")),
                }
            }
            "deadline" => mount.deadline = quantity::limit(value)?,
            "linger" => mount.linger = linger(value)?,
            "uid" => mount.uid = Some(number(value)?),
            "gid" => mount.gid = Some(number(value)?),
            "account" => *account = Some(PathBuf::from(value)),
            "decode-marks" => *decode_marks = Some(PathBuf::from(value)),
            "front" => *front = value.parse()?,
            "sandbox" => *sandbox = value.parse()?,
            "fsname" => *source = Some(value.to_owned()),
            "subtype" => mount.subtype = value.to_owned(),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn number<T: std::str::FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| match std::any::type_name::<T>() {
        name if name == std::any::type_name::<NonZero<u16>>() => format!("'{value}' is not a number from 1 to 65535"),
        name if name == std::any::type_name::<NonZero<usize>>() => format!("'{value}' is not a number from 1 on"),
        _ => format!("'{value}' is not a number"),
    })
}

/// How long threads look for the next request.
fn linger(value: &str) -> Result<Option<Duration>, String> {
    match quantity::limit(value)? {
        Some(time) if time > LINGER_MAX => Err(format!("{value} is more than {} ms", LINGER_MAX.as_millis())),
        time => Ok(time),
    }
}

fn parsed<T: std::str::FromStr<Err: ToString>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error: T::Err| error.to_string())
}

/// The options of a list, without their quotes and backslashes.
fn split(list: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut is_quoted = false;
    let mut characters = list.chars();
    while let Some(character) = characters.next() {
        let option = options.last_mut();
        match character {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => options.push(String::new()),
            '\\' => option.into_iter().for_each(|option| option.extend(characters.next())),
            _ => option.into_iter().for_each(|option| option.push(character)),
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(list: &str) -> Result<Switches, String> {
        let mut switches = Switches::default();
        switches.take_list(list, Strictness::User).map_err(|fail| fail.to_string())?;
        Ok(switches)
    }

    #[test]
    fn lists_as_fstab_has_them_are_taken() {
        let list = "ro,noauto,nofail,_netdev,x-systemd.automount,defaults,user,,relatime,comment=a,nosuid,nodev";
        let switches = taken(list).expect("all are known");
        assert!(switches.mount.flags.nosuid && switches.mount.flags.nodev && !switches.mount.flags.noexec);
    }

    #[test]
    fn values_reach_their_switches() {
        let switches = taken(
            "cache=1g,threads=3,deadline=500ms,uid=5,gid=6,offset=4096,device=/a\\,b,device=/c,device-directory=/d,readdir=plain,\
             max_background=9,read-ahead=1m,private,noacl,clone_fd,fsname=name,subtype=kind,workers=inline,\
             account=/c,decode-marks=/d,front=kernel,sandbox=require,linger=70us,context=\"system_u:object_r:a:s0:c1,c2\"",
        )
        .expect("all are known");
        let Switches { open, mount, source, account, decode_marks, front, sandbox } = switches;
        assert_eq!(front, Front::Kernel);
        assert_eq!(sandbox, Mode::Require);
        assert_eq!((account, decode_marks), (Some("/c".into()), Some("/d".into())));
        assert_eq!(open.engine.cache_bytes, 1 << 30);
        assert_eq!(open.engine.workers.to_string(), "inline");
        assert_eq!(open.offset, Offset::At(4096));
        assert_eq!(open.devices, [PathBuf::from("/a,b"), PathBuf::from("/c")]);
        assert_eq!(open.device_directory, Some("/d".into()));
        assert_eq!(mount.threads.get(), 3);
        assert_eq!(mount.deadline, Some(Duration::from_millis(500)));
        assert_eq!(mount.linger, Some(Duration::from_micros(70)));
        assert_eq!((mount.uid, mount.gid), (Some(5), Some(6)));
        assert_eq!((mount.background_max.get(), mount.read_ahead_bytes), (9, Some(1 << 20)));
        assert_eq!((mount.readdir, mount.acl, mount.clone_fd), (Readdir::Plain, false, true));
        assert_eq!((mount.access, mount.subtype.as_str()), (Some(Access::Owner), "kind"));
        assert_eq!(mount.kernel_options, ["context=system_u:object_r:a:s0:c1,c2"]);
        assert_eq!(source.as_deref(), Some("name"));
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (list, expected) in [
            ("rw", "images are read-only: leave out -o rw"),
            ("colour", "no such option: -o colour (see floe mount --help)"),
            ("colour=red", "no such option: -o colour (see floe mount --help)"),
            ("threads", "-o threads needs a value: -o threads=…"),
            ("threads=0", "-o threads: '0' is not a number from 1 on"),
            ("max_background=70000", "-o max_background: '70000' is not a number from 1 to 65535"),
            ("cache=much", "-o cache: 'much' is not a size: give a number of bytes, or one with k, M or G"),
            ("readdir=fast", "-o readdir: 'fast' is not plain, plus or auto"),
            ("workers=many", "-o workers: 'many' is not per-cpu, shared or inline"),
            ("sandbox=perhaps", "-o sandbox: 'perhaps' is not off, auto or require"),
            ("linger=1s", "-o linger: 1s is more than 10 ms"),
            ("read-ahead=8g", "-o read-ahead: 8g is more than 4 GiB"),
        ] {
            assert_eq!(taken(list).expect_err(list), expected);
        }
        for strictness in [Strictness::MountHelper, Strictness::Sloppy] {
            Switches::default().take_list("rw", strictness).expect("mount(8) adds it");
        }
        Switches::default().take_list("colour=red,blue", Strictness::Sloppy).expect("it is passed over");
    }
}
