//! Prints listings in the formats of `unsquashfs`.

use std::{
    collections::HashMap,
    fs,
    io::{self, IsTerminal, Write},
    os::unix::ffi::OsStrExt,
};

use floe::{FileType, Image, WalkEntry};
use floe_image::Shown;

use super::arguments::{Arguments, Form};
use crate::{
    inode_record::ModeText,
    iso_time::{IsoTime, Zone},
};

/// The combined width of owner, group and size.
const COLUMNS_WIDTH: usize = 27;

/// Writes a listing.
pub(super) struct Listing<'a> {
    form: Form,
    image: &'a Image,
    /// The path that replaces the root.
    prefix: Vec<u8>,
    owners: Owners,
    zone: Zone,
    with_seconds: bool,
    /// Whether names are quoted. The original prints them as they are stored, and so does this program, except on a terminal.
    is_quoted: bool,
}

/// The names of users and groups of this machine.
#[derive(Default)]
pub(super) struct Owners {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Owners {
    /// The names, if the listing shows them.
    pub(super) fn new(arguments: &Arguments) -> Self {
        match arguments.form {
            Some(Form { has_attributes: true, is_numeric: false, .. }) => {
                Self { users: ids("/etc/passwd"), groups: ids("/etc/group") }
            }
            _ => Self::default(),
        }
    }
}

impl<'a> Listing<'a> {
    pub(super) fn new(arguments: &Arguments, image: &'a Image, owners: Owners, zone: Zone) -> Self {
        let form = arguments.form.unwrap_or(super::PLAIN);
        Self {
            form,
            image,
            prefix: arguments.target.as_os_str().as_bytes().to_vec(),
            owners,
            zone,
            with_seconds: arguments.full_precision,
            is_quoted: io::stdout().is_terminal(),
        }
    }

    pub(super) fn write(&self, entry: &WalkEntry, output: &mut dyn Write) -> io::Result<()> {
        let has_content = || self.image.read_dir(entry.attr.nid).next().is_some();
        if self.form.is_concise && entry.attr.file_type == FileType::Directory && has_content() {
            return Ok(());
        }
        output.write_all(&self.line(entry))
    }

    fn line(&self, entry: &WalkEntry) -> Vec<u8> {
        let attr = &entry.attr;
        let mut line = Vec::new();
        if self.form.has_attributes {
            let name =
                |names: &HashMap<u32, String>, id: u32| names.get(&id).cloned().unwrap_or_else(|| id.to_string());
            let owners = format!("{}/{}", name(&self.owners.users, attr.uid), name(&self.owners.groups, attr.gid));
            let width = COLUMNS_WIDTH.saturating_sub(owners.len());
            let size = match attr.file_type {
                FileType::CharacterDevice | FileType::BlockDevice => {
                    format!("{:3},{:3}", attr.device.major, attr.device.minor)
                }
                _ => attr.size.to_string(),
            };
            let time = IsoTime(self.zone.shift(attr.modified)).to_string().replace('T', " ");
            let time = time.trim_end_matches('Z');
            let time = if self.with_seconds { time } else { time.get(..time.len() - 3).unwrap_or(time) };
            line.extend_from_slice(format!("{} {owners}{size:>width$} {time} ", ModeText(attr)).as_bytes());
        }
        let path = if entry.path == b"/" { &[][..] } else { &entry.path };
        self.add_name(&mut line, &[&self.prefix, path].concat());
        if self.form.has_attributes
            && attr.file_type == FileType::Symlink
            && let Ok(target) = self.image.file_system().read_link(attr.nid)
        {
            line.extend_from_slice(b" -> ");
            self.add_name(&mut line, &target);
        }
        line.push(b'\n');
        line
    }

    fn add_name(&self, line: &mut Vec<u8>, name: &[u8]) {
        if self.is_quoted {
            line.extend_from_slice(Shown(name).to_string().as_bytes());
        } else {
            line.extend_from_slice(name);
        }
    }
}

/// The names of users or groups of this machine.
fn ids(file: &str) -> HashMap<u32, String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(_), Some(id)) = (fields.next(), fields.next(), fields.next())
            && let Ok(id) = id.parse()
        {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    names
}
