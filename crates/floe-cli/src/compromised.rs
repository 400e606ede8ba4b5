//! A hook for tests: a thread that obeys an attacker. In builds for debugging alone.

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

/// Where the thread is to try what it may not: a directory, and a TCP port after a colon.
const VARIABLE: &str = "FLOE_TEST_COMPROMISED";

static ORDER: OnceLock<Option<Order>> = OnceLock::new();

/// Whether a read of a mount is to try, rather than a thread of its own.
static IS_FOR_READS: AtomicBool = AtomicBool::new(false);

struct Order {
    place: PathBuf,
    port: u16,
    output: File,
    is_done: AtomicBool,
}

/// Opens what the thread will write to, while that is possible.
pub(crate) fn prepare() {
    ORDER.get_or_init(|| {
        let order = env::var(VARIABLE).ok()?;
        let (place, port) = order.rsplit_once(':')?;
        let place = PathBuf::from(place);
        let output = File::create(place.join("attempts")).ok()?;
        Some(Order { place, port: port.parse().ok()?, output, is_done: AtomicBool::new(false) })
    });
}

fn is_wanted() -> bool {
    ORDER.get().is_some_and(Option::is_some)
}

/// Tries here and now, once.
fn here() {
    if let Some(Some(order)) = ORDER.get()
        && !order.is_done.swap(true, Relaxed)
    {
        let _ = floe_sandbox::probe(&order.output, &order.place, order.port);
    }
}

/// Makes the thread that takes the first read of a mount try.
pub(crate) fn on_a_read(options: &mut floe_fuse::MountOptions) {
    prepare();
    if is_wanted() {
        IS_FOR_READS.store(true, Relaxed);
        options.reads = Some(std::sync::Arc::new(|_, _, _| here()));
    }
}

/// Tries on a thread of its own, as decoders are, where no mount does.
pub(crate) fn on_a_thread() {
    if is_wanted() && !IS_FOR_READS.load(Relaxed) {
        let _ = thread::spawn(here).join();
    }
}
