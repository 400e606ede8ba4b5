//! Unmounting what nobody uses.

use std::{
    thread,
    time::{Duration, Instant},
};

use floe::Image;
use floe_fuse::{Detach, Unmounter};

/// How often it is looked whether anything was read.
const GLANCE: Duration = Duration::from_millis(250);

/// Unmounts once nothing was read from the image for `idle`, and nobody has anything in it open.
pub(crate) fn unmount_when_idle(image: Image, unmounter: Unmounter, idle: Duration) {
    let work = move || {
        let mut counters = image.reader().engine().counters();
        let mut since = Instant::now();
        while unmounter.is_mounted() {
            thread::sleep(GLANCE.min(idle));
            let now = image.reader().engine().counters();
            if now != counters {
                (counters, since) = (now, Instant::now());
            } else if since.elapsed() >= idle {
                // What the kernel has cached is not read again: who still uses it makes the unmount fail.
                if unmounter.unmount(Detach::Never).is_ok() {
                    return;
                }
                since = Instant::now();
            }
        }
    };
    // Without this thread the image stays mounted, as it does without the option.
    let _ = thread::Builder::new().name("floe-idle".to_owned()).spawn(work);
}
