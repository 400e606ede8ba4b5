//! A test hook that simulates a compromised thread. Only in debug builds.

use std::{
    env,
    fs::File,
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

/// The environment variable with the targets of the simulated attack: a directory, a colon, and a TCP port.
const VARIABLE: &str = "FLOE_TEST_COMPROMISED";

/// The environment variable that makes a process of the service break its promises: `rendering`, `nothing` or `order`.
const LIES: &str = "FLOE_TEST_LYING";

static ORDER: OnceLock<Option<Order>> = OnceLock::new();

/// Whether the attack runs in a read of a mount instead of its own thread.
static IS_FOR_READS: AtomicBool = AtomicBool::new(false);

struct Order {
    place: PathBuf,
    port: u16,
    output: File,
    is_done: AtomicBool,
}

/// Opens the output of the attack while that is still permitted.
pub(crate) fn prepare() {
    ORDER.get_or_init(|| {
        let order = env::var(VARIABLE).ok()?;
        let (place, port) = order.rsplit_once(':')?;
        let place = PathBuf::from(place);
        let output = File::create(place.join("attempts")).ok()?;
        Some(Order { place, port: port.parse().ok()?, output, is_done: AtomicBool::new(false) })
    });
}

/// Whether the process is to do something else than it is told to, in this way.
pub(crate) fn lies(how: &str) -> bool {
    env::var(LIES).is_ok_and(|lie| lie == how)
}

fn is_wanted() -> bool {
    ORDER.get().is_some_and(Option::is_some)
}

/// Runs the attack on the calling thread, once.
fn here() {
    if let Some(Some(order)) = ORDER.get()
        && !order.is_done.swap(true, Relaxed)
    {
        let _ = floe_sandbox::probe(&order.output, &order.place, order.port);
    }
}

/// Runs the attack on the thread that takes the first read of a mount, which calls this.
pub(crate) fn read_sink() -> Option<floe_fuse::ReadSink> {
    prepare();
    is_wanted().then(|| -> floe_fuse::ReadSink {
        IS_FOR_READS.store(true, Relaxed);
        std::sync::Arc::new(|_, _, _| here())
    })
}

/// Runs the attack on its own thread, for commands other than mounts.
pub(crate) fn on_a_thread() {
    if is_wanted() && !IS_FOR_READS.load(Relaxed) {
        let _ = thread::spawn(here).join();
    }
}
