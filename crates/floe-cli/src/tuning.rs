//! The switches of a mount that runs.

use floe::{EngineOptions, OpenOptions};
use floe_fuse::{Access, MountOptions, Readdir};
use serde::{Deserialize, Serialize};

use crate::{quantity, switches::Switches};

/// A switch of a mount, as it is now.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(crate) struct Switch {
    /// Its name, as `-o` has it.
    pub(crate) key: String,
    /// Its value, as `-o` takes it.
    pub(crate) value: String,
    /// Whether it can be moved while the mount runs.
    pub(crate) is_tunable: bool,
}

/// What can be moved while a mount runs.
const TUNABLE: [&str; 10] = [
    "cache",
    "metadata-cache",
    "reserved-pages",
    "workers",
    "priority",
    "sync-decompress",
    "read-around",
    "prefetch",
    "readahead-alloc",
    "fetch-around",
];

/// The switches of a mount: those of its engine, and those it was made with.
pub(crate) fn switches(engine: &EngineOptions, mount: &MountOptions) -> Vec<Switch> {
    let or_image = |id: Option<u32>| id.map_or_else(|| "image".to_owned(), |id| id.to_string());
    let on_off = |is_on: bool| if is_on { "on" } else { "off" }.to_owned();
    let tunable = [
        quantity::exact(engine.cache_bytes),
        engine.metadata_cache.to_string(),
        engine.reserved_pages.to_string(),
        engine.workers.to_string(),
        engine.priority.to_string(),
        engine.sync_decompress.to_string(),
        on_off(engine.read_around),
        engine.prefetch.to_string(),
        engine.readahead_alloc.to_string(),
        quantity::exact(engine.fetch_around_bytes),
    ];
    let fixed = [
        ("decoder-memory", quantity::exact(engine.decoder_bytes)),
        ("read-memory", quantity::exact(engine.read_bytes)),
        ("overflow", quantity::exact(engine.overflow_bytes)),
        (
            "overflow-directory",
            engine.overflow_directory.as_ref().map_or_else(String::new, |directory| directory.display().to_string()),
        ),
        ("threads", mount.threads.to_string()),
        ("clone-fd", on_off(mount.clone_fd)),
        ("max-background", mount.background_max.to_string()),
        (
            "read-ahead",
            mount.read_ahead_bytes.map_or_else(|| "kernel".to_owned(), |bytes| quantity::exact(bytes.into())),
        ),
        (
            "readdir",
            match mount.readdir {
                Readdir::Adaptive => "adaptive",
                Readdir::Plain => "plain",
                Readdir::Plus => "plus",
                Readdir::Auto => "auto",
            }
            .to_owned(),
        ),
        ("deadline", mount.deadline.map_or_else(|| "off".to_owned(), |deadline| format!("{}ms", deadline.as_millis()))),
        ("linger", mount.linger.map_or_else(|| "off".to_owned(), |time| format!("{}us", time.as_micros()))),
        (
            "access",
            match mount.access {
                None => "auto",
                Some(Access::Owner) => "private",
                Some(Access::OwnerAndRoot) => "allow_root",
                Some(Access::All) => "allow_other",
            }
            .to_owned(),
        ),
        ("acl", on_off(mount.acl)),
        ("uid", or_image(mount.uid)),
        ("gid", or_image(mount.gid)),
    ];
    let switch = |is_tunable| move |(key, value): (&str, String)| Switch { key: key.to_owned(), value, is_tunable };
    TUNABLE.into_iter().zip(tunable).map(switch(true)).chain(fixed.into_iter().map(switch(false))).collect()
}

/// The options of an engine after `key=value` each.
///
/// # Errors
/// A switch is not known, cannot be moved while the mount runs, or does not take the value: one line.
pub(crate) fn tuned(engine: &EngineOptions, changes: &[String]) -> Result<EngineOptions, String> {
    let mut switches =
        Switches { open: OpenOptions { engine: engine.clone(), ..OpenOptions::default() }, ..Switches::default() };
    for change in changes {
        let (key, value) = match change.split_once('=') {
            Some((key, value)) => (key.replace('_', "-"), value),
            None if change == "read-around" => ("read-around".to_owned(), "on"),
            None if change == "noread-around" => ("read-around".to_owned(), "off"),
            None => return Err(format!("{change} needs a value: {change}=…")),
        };
        if TUNABLE.contains(&key.as_str()) {
            switches.take_tunable(&key, value).map_err(|reason| format!("{key}: {reason}"))?;
            continue;
        }
        if key == "read-ahead" {
            return Err("read-ahead is the kernel's: root sets it in /sys/class/bdi/…/read_ahead_kb".to_owned());
        }
        let fixed = self::switches(engine, &MountOptions::default());
        return Err(if fixed.iter().any(|switch| switch.key == key) || ["offset", "device"].contains(&key.as_str()) {
            format!("{key} cannot change while the image is mounted: mount it again with -o {key}={value}")
        } else {
            format!("there is no switch {key}: floe tune DIR lists them")
        });
    }
    Ok(switches.open.engine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tunable_switch_takes_back_the_value_it_shows() {
        let engine = EngineOptions { cache_bytes: 12_345, ..EngineOptions::default() };
        for switch in switches(&engine, &MountOptions::default()).iter().filter(|switch| switch.is_tunable) {
            let change = format!("{}={}", switch.key, switch.value);
            assert_eq!(tuned(&engine, std::slice::from_ref(&change)).expect(&change), engine, "{change}");
        }
    }

    #[test]
    fn changes_are_taken_together_or_not_at_all() {
        let engine = EngineOptions::default();
        let check =
            |changes: &[&str]| tuned(&engine, &changes.iter().map(|change| (*change).to_owned()).collect::<Vec<_>>());
        let found = check(&["cache=1M", "noread-around", "reserved_pages=7", "workers=inline"]).expect("all are known");
        assert_eq!((found.cache_bytes, found.read_around, found.reserved_pages), (1 << 20, false, 7));
        for (changes, expected) in [
            (&["cache=1M", "cache"][..], "cache needs a value: cache=…"),
            (&["cache=much"], "cache: 'much' is not a size: give a number of bytes, or one with k, M or G"),
            (&["read-around=maybe"], "read-around: 'maybe' is not on or off"),
            (&["threads=3"], "threads cannot change while the image is mounted: mount it again with -o threads=3"),
            (&["offset=3"], "offset cannot change while the image is mounted: mount it again with -o offset=3"),
            (&["read_ahead=1M"], "read-ahead is the kernel's: root sets it in /sys/class/bdi/…/read_ahead_kb"),
            (&["colour=red"], "there is no switch colour: floe tune DIR lists them"),
        ] {
            assert_eq!(check(changes).expect_err("it makes no sense"), expected);
        }
    }
}
