//! The progress bar of a build.

use std::{
    io::{self, IsTerminal},
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use floe_mkfs::{Phase, Progress};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};

/// Shows progress with the rate and the estimated time, and stops the build when a flag is set.
pub(super) struct Bar<'a> {
    bar: ProgressBar,
    stop: &'a AtomicBool,
}

impl<'a> Bar<'a> {
    /// Creates a bar on the terminal, if there is one.
    pub(super) fn new(hidden: bool, stop: &'a AtomicBool) -> Self {
        Self { bar: progress_bar(hidden), stop }
    }

    /// Removes the bar.
    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Bar<'_> {
    fn advance(&mut self, phase: Phase, done: u64, total: u64) -> ControlFlow<()> {
        self.bar.set_prefix(match phase {
            Phase::Scan => "listing",
            Phase::Unpack => "unpacking",
            Phase::Compare => "comparing",
            Phase::Data => "compressing",
            Phase::Verify => "reading back",
            Phase::Packed => "compressing fragments",
            _ => "writing metadata",
        });
        if phase == Phase::Scan {
            self.bar.set_message(format!("{} inodes", HumanCount(done)));
        } else {
            self.bar.set_message("");
            self.bar.set_length(total);
            self.bar.set_position(done);
        }
        if self.stop.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn progress_bar(hidden: bool) -> ProgressBar {
    if hidden || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{prefix} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} {msg}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}
