//! Collecting the metrics of all mounts.

use std::{io, thread, time::Duration};

use floe_fuse::MountTable;

use crate::{
    control::{Answer, Endpoint, Question},
    status::{Exposition, Kind, Report, SCHEMA, add_report},
};

/// How long a mount may take to answer. Prometheus gives up after 10 seconds.
const PATIENCE: Duration = Duration::from_secs(3);

/// How many mounts are asked at once.
const MOUNTS_AT_ONCE: usize = 64;

/// The metrics of this user's mounts, or of the mounts of all users.
///
/// # Errors
/// The mount table cannot be read.
pub(crate) fn collect(of_every_user: bool) -> io::Result<Vec<u8>> {
    let mut exposition = Exposition::default();
    let endpoints = Endpoint::all(of_every_user);
    for endpoints in endpoints.chunks(MOUNTS_AT_ONCE) {
        let reports: Vec<_> = thread::scope(|scope| {
            let asked: Vec<_> = endpoints.iter().map(|endpoint| scope.spawn(|| ask(endpoint))).collect();
            asked.into_iter().map(|asked| asked.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))).collect()
        });
        // After the answers, so that a mount that has ended meanwhile does not count as one that fails to answer.
        let table = MountTable::read()?;
        for (endpoint, report) in endpoints.iter().zip(reports) {
            let mounted = table.entries().iter().find(|entry| entry.device == endpoint.device && entry.is_served());
            match (report, mounted) {
                (Ok(report), _) => {
                    add_up(&mut exposition, endpoint, &report.mountpoint, true)?;
                    add_report(&mut exposition, &report)?;
                }
                (Err(_), Some(entry)) => {
                    add_up(&mut exposition, endpoint, &entry.mountpoint.to_string_lossy(), false)?;
                }
                // Left over from a mount that has ended.
                (Err(_), None) => {}
            }
        }
    }
    let mut text = Vec::new();
    exposition.write(&mut text)?;
    Ok(text)
}

fn ask(endpoint: &Endpoint) -> io::Result<Box<Report>> {
    match endpoint.ask(&Question::Status, PATIENCE)? {
        Answer::Status(report) if report.schema == SCHEMA => Ok(report),
        _ => Err(io::Error::other("another version of Floe")),
    }
}

/// Adds whether a mount answers.
fn add_up(exposition: &mut Exposition, endpoint: &Endpoint, mountpoint: &str, is_up: bool) -> io::Result<()> {
    let device = format!("{}:{}", endpoint.device.0, endpoint.device.1);
    let user = endpoint.user_id.to_string();
    let help = "Whether the program that serves the mount answers.";
    let mut out = exposition.of_mount(mountpoint, &device);
    out.one("floe_mount_up", Kind::Gauge, help, &[("user", &user)], f64::from(u8::from(is_up)))
}
