//! Buffers of reads, reused by later reads.

use floe_image::Extent;
use floe_sync::Mutex;

use super::{acquire::Step, plan::PlannedStep};

/// The buffers of one read. They are reused, so that a read allocates nothing.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(crate) extents: Vec<Extent>,
    pub(crate) planned: Vec<PlannedStep>,
    pub(crate) steps: Vec<Step>,
}

/// The idle workspaces: at most as many as reads ever ran concurrently.
#[derive(Default)]
pub(crate) struct Workspaces {
    idle: Mutex<Vec<Workspace>>,
}

impl Workspaces {
    /// Runs `work` with an empty workspace.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Workspace) -> R) -> R {
        let idle = self.idle.lock().pop();
        let mut workspace = idle.unwrap_or_default();
        let result = work(&mut workspace);
        workspace.extents.clear();
        workspace.planned.clear();
        workspace.steps.clear();
        self.idle.lock().push(workspace);
        result
    }
}
