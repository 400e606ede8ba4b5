//! The list of all mounts of Floe.

use std::{collections::HashMap, time::Duration};

use floe_image::json_name;
use floe_ipc::{ServiceClient, ServiceMount};
use floe_keeper::{MountEntry, MountTable};
use floe_mount::control::ServingProcess;
use rustix::process::geteuid;
use serde::Serialize;

use crate::{
    fail::{Exit, Fail},
    output::Output,
};

/// How long the service may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A mount in the list.
#[derive(Serialize)]
struct Listed {
    mountpoint: String,
    image: String,
    device: String,
    /// `service`, `process`, `nobody`, or `other-user`.
    served_by: &'static str,
    /// The process that reads the image, if it is known.
    process: Option<u32>,
    /// Its format, if the service serves it.
    format: Option<String>,
}

/// Lists the mounts of Floe that this process sees. Accesses none of them.
///
/// # Errors
/// The mount table cannot be read.
pub(super) fn print(is_json: bool) -> Result<u8, Fail> {
    let table = MountTable::read().map_err(|error| Fail::failed(format!("cannot read the mount table: {error}")))?;
    let served = of_service();
    let is_ours = |entry: &&MountEntry| entry.is_front() || entry.file_system == "fuse.floe";
    let listed: Vec<Listed> = table.entries().iter().filter(is_ours).map(|entry| Listed::of(entry, &served)).collect();
    Output::run(|writer| {
        if is_json {
            serde_json::to_writer_pretty(&mut *writer, &listed)?;
            writeln!(writer)?;
            return Ok(Exit::Done.code());
        }
        let width = |text: fn(&Listed) -> &String| listed.iter().map(|mount| text(mount).len()).max().unwrap_or(0);
        let (mountpoints, images) = (width(|mount| &mount.mountpoint), width(|mount| &mount.image));
        for mount in &listed {
            let Listed { mountpoint, image, .. } = mount;
            writeln!(writer, "{mountpoint:mountpoints$}  {image:images$}  {}", mount.server())?;
        }
        Ok(Exit::Done.code())
    })
}

/// The mounts of the service by their device numbers; none if no service answers.
fn of_service() -> HashMap<(u32, u32), ServiceMount> {
    let listed = ServiceClient::connect().and_then(|mut service| {
        service.set_patience(PATIENCE);
        service.list()
    });
    listed.unwrap_or_default().into_iter().map(|mount| (mount.device, mount)).collect()
}

impl Listed {
    fn of(entry: &MountEntry, of_service: &HashMap<(u32, u32), ServiceMount>) -> Self {
        let user = geteuid().as_raw();
        let (served_by, process, format) = match of_service.get(&entry.device) {
            Some(mount) => ("service", Some(mount.process).filter(|process| *process != 0), Some(mount.format.clone())),
            None if entry.user_id.is_some_and(|owner| owner != user) => ("other-user", None, None),
            None => match ServingProcess::of(&entry.mountpoint) {
                Some(process) => ("process", Some(process.id.as_raw_nonzero().get().unsigned_abs()), None),
                None => ("nobody", None, None),
            },
        };
        let shown = |path: &std::path::Path| json_name(path.as_os_str().as_encoded_bytes());
        Self {
            mountpoint: shown(&entry.mountpoint),
            image: shown(entry.image()),
            device: format!("{}:{}", entry.device.0, entry.device.1),
            served_by,
            process,
            format,
        }
    }

    /// Who serves it, in words.
    fn server(&self) -> String {
        let process = self.process.map_or_else(String::new, |process| format!("process {process}"));
        match (self.served_by, self.process) {
            ("service", Some(_)) => format!("service, {process}"),
            ("service", None) => "service, being restarted".to_owned(),
            ("process", _) => process,
            ("other-user", _) => "of another user".to_owned(),
            _ => format!("nobody answers: if its program is gone, run floe umount {}", self.mountpoint),
        }
    }
}
