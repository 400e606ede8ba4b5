//! Decodes a window ahead of a sequential reader into the block cache.

use floe_image::{Nid, Result};

use crate::{
    Blocking,
    prefetch::{ahead_guard::AheadGuard, detectors::sequential::Ahead, thresholds::AHEAD_STEP_BYTES},
    read::{
        acquire::{BlockSource, Step},
        file_data::FileData,
        job::{Costly, Job},
        plan::{Origin, PlannedStep},
        workspace::Workspace,
    },
};

/// Decodes a window ahead of a sequential reader into the block cache.
///
/// # Errors
/// The window cannot be mapped or read.
pub(super) fn decode(data: &FileData, nid: Nid, window: &Ahead) -> Result<()> {
    data.workspaces.with(|workspace| {
        data.plan(workspace, nid, window.range, Blocking::Allowed)?;
        let planned = std::mem::take(&mut workspace.planned);
        let result = run(data, workspace, window, &planned);
        workspace.planned = planned;
        result
    })
}

fn run(data: &FileData, workspace: &mut Workspace, window: &Ahead, planned: &[PlannedStep]) -> Result<()> {
    let volume = &data.volume;
    let ahead = AheadGuard { window, controller: &volume.prefetch };
    let job = Job { volume, blocking: Blocking::Allowed, costly: Costly::DecodeHere, ahead: Some(&ahead) };
    let mut rest = planned;
    while let Some(first) = rest.first() {
        let step_end = first.output.start + AHEAD_STEP_BYTES;
        let count = rest.partition_point(|step| step.output.end <= step_end).max(1);
        let (part, later) = rest.split_at(count);
        rest = later;
        let mut steps = std::mem::take(&mut workspace.steps);
        steps.extend(part.iter().filter_map(|step| step_ahead(data, step, &ahead)));
        let result = job.run(&mut steps, &mut [][..]);
        workspace.steps = steps;
        result?;
    }
    Ok(())
}

/// The prefetch step for a planned step. Plain bytes are only requested from the source.
fn step_ahead(data: &FileData, step: &PlannedStep, ahead: &AheadGuard<'_>) -> Option<Step> {
    let volume = &data.volume;
    match step.origin {
        Origin::Hole => None,
        Origin::Plain { device, offset } => {
            if !ahead.window.is_cancelled() {
                volume.sources.will_need(device, offset, step.output.len() as u64);
            }
            None
        }
        Origin::Block { block, .. } => {
            let is_needed = volume.blocks.has_room_for(&block) && !volume.blocks.contains(&block);
            let is_wanted = is_needed && ahead.wants(step.output.end);
            is_wanted.then(|| Step { output: step.output.clone(), source: BlockSource::Ahead { block } })
        }
    }
}
