//! The scheduler's groups by session, switched off for measurements under load.

use floe_lab::{
    Interrupt,
    machine::{AUTOGROUP, Setting, Undo},
};

use crate::task_error::{During, Outcome};

/// Autogroup is off until this is dropped: it would hold off the load, which is in other sessions.
pub(super) struct AutogroupOff {
    // Dropped in this order.
    _setting: Option<Setting>,
    undo: Undo,
}

impl AutogroupOff {
    /// Waits until no latency lab is running, and switches it off.
    pub(super) fn new() -> Outcome<Self> {
        let undo = Undo::alone(&Interrupt::listen()).during("the settings of the machine")?;
        let setting = Setting::set(&undo, AUTOGROUP, "0").during("autogroup")?;
        Ok(Self { _setting: setting, undo })
    }

    /// The journal of changes to the machine.
    pub(super) const fn undo(&self) -> &Undo {
        &self.undo
    }
}
