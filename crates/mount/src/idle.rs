//! Unmounts images that are not in use.

use std::{
    thread,
    time::{Duration, Instant},
};

use floe::Image;
use floe_fuse::Unmounter;
use floe_keeper::Detach;

use crate::log::MountLog;

/// The interval of the checks for reads.
const GLANCE: Duration = Duration::from_millis(250);

/// Unmounts after no bytes were read from the image for `idle`, if no program has a file of it open.
pub(crate) fn unmount_when_idle(image: Image, unmounter: Unmounter, idle: Duration, log: &MountLog) {
    let work = move || {
        let mut counters = image.reader().engine().counters();
        let mut since = Instant::now();
        while unmounter.is_mounted() {
            thread::sleep(GLANCE.min(idle));
            let now = image.reader().engine().counters();
            if now != counters {
                (counters, since) = (now, Instant::now());
            } else if since.elapsed() >= idle {
                // Reads of cached bytes do not reach the mount. If a program still uses it, the unmount fails.
                if unmounter.unmount(Detach::Never).is_ok() {
                    return;
                }
                since = Instant::now();
            }
        }
    };
    // Without this thread the image stays mounted, as without the option.
    if let Err(error) = thread::Builder::new().name("floe-idle".to_owned()).spawn(work) {
        log.remark(format_args!("the image stays mounted when it is idle: no thread can be started: {error}"));
    }
}
