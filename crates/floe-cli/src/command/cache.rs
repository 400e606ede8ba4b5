//! `floe cache`: manages the cache of remote images.

use std::{
    io::{self, Write},
    path::PathBuf,
    sync::Arc,
    time::SystemTime,
};

use clap::{Args, Subcommand};
use floe_remote_cache::{Cache, CacheOptions, CheckReport, Digest, ObjectReport};
use indicatif::HumanBytes;
use serde::Serialize;

use crate::{
    fail::{Exit, Fail},
    output::Output,
};
use floe_image::{Shown, ShownName};
use floe_mount::quantity;

/// List, verify and remove the content of the cache of remote images
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe cache ls\n  \
    floe cache verify\n  \
    floe cache prune --to 2G\n  \
    floe cache drop 3f9a\n\n\
    An ID is as shown by floe cache ls, or its first digits. All of this is safe while images are mounted: a mount fetches\n\
    removed data again when it needs them.\n\n\
    Exit codes:\n  \
    0  done\n  \
    1  the cache cannot be read or written\n  \
    2  wrong usage, or no such object\n  \
    4  floe cache verify found corrupt chunks, and removed them")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// The cache directory [default: /var/cache/floe for root, else $XDG_CACHE_HOME/floe or ~/.cache/floe]
    #[arg(long, alias = "cache-dir", value_name = "DIR", global = true)]
    cache_directory: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// List the cached objects with their cached part
    Ls {
        /// Write one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Read all cached data, compare it with its digests, and remove corrupt data
    Verify {
        /// Only these objects
        #[arg(value_name = "ID")]
        ids: Vec<String>,
    },
    /// Remove leftovers of killed processes, and digest tables and names unused for 30 days; evict data down to a size
    Prune {
        /// The size [default: the current size]
        #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
        to: Option<u64>,
    },
    /// Remove objects; of a mounted object only the data is removed
    Drop {
        /// The objects
        #[arg(value_name = "ID", required_unless_present = "all")]
        ids: Vec<String>,
        /// All objects
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
}

#[derive(Serialize)]
struct ObjectRecord<'a> {
    id: String,
    name: &'a str,
    key: &'a str,
    verified: bool,
    bytes: u64,
    allocated_bytes: u64,
    chunks: u64,
    present_chunks: u64,
    pinned_chunks: u64,
    open: bool,
    used_unix_seconds: Option<u64>,
}

/// Runs the command.
///
/// # Errors
/// The cache cannot be read or written, or an object does not exist.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let cache = open(arguments.cache_directory.clone())?;
    match &arguments.command {
        Command::Ls { json } => Output::run(|output| {
            for report in cache.list() {
                if *json { write_json(&report, output)? } else { write_line(&report, output)? }
            }
            Ok(Exit::Done.code())
        }),
        Command::Verify { ids } => verify(&cache, ids),
        Command::Prune { to } => {
            let (before, after) =
                cache.prune(to.unwrap_or(u64::MAX)).map_err(|error| failed("prune the cache", &error))?;
            Output::print(format!("{} before, {} now\n", HumanBytes(before), HumanBytes(after)))
        }
        Command::Drop { ids, all } => {
            let reports = if *all { cache.list() } else { chosen(&cache, ids)? };
            Output::run(|output| {
                for report in &reports {
                    let is_gone = cache.drop_object(&report.id)?.unwrap_or(true);
                    let note = if is_gone { "" } else { " (in use: only its data is removed)" };
                    writeln!(output, "{}  {}{note}", short(&report.id), Shown(report.name.as_bytes()))?;
                }
                Ok(Exit::Done.code())
            })
        }
    }
}

fn open(directory: Option<PathBuf>) -> Result<Arc<Cache>, Fail> {
    let directory = directory.or_else(CacheOptions::default_directory);
    let directory = directory.ok_or_else(|| Fail::usage("there is no home directory: give --cache-directory DIR"))?;
    // Listing a cache that does not exist must not create it.
    if !directory.is_dir() {
        return Err(Fail::failed(format!("{}: there is no cache in this directory", directory.shown())));
    }
    let shown = directory.shown().to_string();
    let notice = Arc::new(|text: &str| say!("floe: {text}"));
    Cache::open(CacheOptions::new(directory, notice)).map_err(|error| Fail::failed(format!("{shown}: {error}")))
}

fn verify(cache: &Cache, ids: &[String]) -> Result<u8, Fail> {
    let reports = if ids.is_empty() { cache.list() } else { chosen(cache, ids)? };
    Output::run(|output| {
        let mut exit = Exit::Done;
        for ObjectReport { id, name, .. } in &reports {
            let CheckReport { sound_chunks, removed_chunks, unproven_chunks } = cache.check(id)?.unwrap_or_default();
            write!(output, "{}  {}: {sound_chunks} chunks are correct", short(id), Shown(name.as_bytes()))?;
            if unproven_chunks > 0 {
                write!(
                    output,
                    ", {unproven_chunks} are unchanged since they were stored, but the cache lacks the hashes to verify them"
                )?;
            }
            if removed_chunks > 0 {
                exit = Exit::HasErrors;
                write!(output, ", {removed_chunks} were corrupt and were removed")?;
            }
            writeln!(output)?;
        }
        Ok(exit.code())
    })
}

/// Finds the objects with these ids, which may be abbreviated.
fn chosen(cache: &Cache, ids: &[String]) -> Result<Vec<ObjectReport>, Fail> {
    let reports = cache.list();
    let find = |id: &String| {
        let mut found = reports.iter().filter(|report| report.id.to_string().starts_with(id.as_str()));
        match (found.next(), found.next()) {
            (Some(report), None) => Ok(report.clone()),
            (None, _) => Err(Fail::usage(format!("{id}: no such object; see floe cache ls"))),
            (Some(_), Some(_)) => Err(Fail::usage(format!("{id}: several objects begin with this; give more digits"))),
        }
    };
    ids.iter().map(find).collect()
}

fn write_line(report: &ObjectReport, output: &mut dyn Write) -> io::Result<()> {
    let percent = 100 * report.present_chunks / report.chunks.max(1);
    let trust = if report.is_verified { "verified" } else { "unverified" };
    let state = if report.is_open { "  in use" } else { "" };
    let (allocated, len) = (HumanBytes(report.allocated_bytes).to_string(), HumanBytes(report.len).to_string());
    let name = Shown(report.name.as_bytes());
    writeln!(output, "{}  {percent:3} %  {allocated:>11} of {len:>11}  {trust:10}  {name}{state}", short(&report.id))
}

fn write_json(report: &ObjectReport, output: &mut dyn Write) -> io::Result<()> {
    let used = report.used.and_then(|used| used.duration_since(SystemTime::UNIX_EPOCH).ok());
    let record = ObjectRecord {
        id: report.id.to_string(),
        name: &report.name,
        key: &report.key,
        verified: report.is_verified,
        bytes: report.len,
        allocated_bytes: report.allocated_bytes,
        chunks: report.chunks,
        present_chunks: report.present_chunks,
        pinned_chunks: report.pinned_chunks,
        open: report.is_open,
        used_unix_seconds: used.map(|used| used.as_secs()),
    };
    serde_json::to_writer(&mut *output, &record)?;
    writeln!(output)
}

/// The first digits of an id.
fn short(id: &Digest) -> String {
    id.to_string().chars().take(12).collect()
}

fn failed(what: &str, error: &io::Error) -> Fail {
    Fail::failed(format!("cannot {what}: {error}"))
}
