//! What one read needs while it runs.

use std::sync::{Mutex, PoisonError};

use floe_image::Extent;

use super::{acquire::Step, plan::PlannedStep};

/// What one read needs while it runs, kept from read to read so that nothing is made anew.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(crate) extents: Vec<Extent>,
    pub(crate) planned: Vec<PlannedStep>,
    pub(crate) steps: Vec<Step>,
}

/// Workspaces that nobody uses now; as many as there were reads at one time.
#[derive(Default)]
pub(crate) struct Workspaces {
    idle: Mutex<Vec<Workspace>>,
}

impl Workspaces {
    /// Runs `work` with a workspace of its own.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Workspace) -> R) -> R {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut workspace = idle.unwrap_or_default();
        let result = work(&mut workspace);
        workspace.extents.clear();
        workspace.planned.clear();
        workspace.steps.clear();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
        result
    }
}
