//! Reads of file data.

use std::sync::Arc;

use floe_image::{ByteRange, DeviceId, Error, FileSystem, Nid, Result, StoredBlock, StoredLen};

use crate::{
    Engine, PageRun,
    block_cache::{CachedBlock, Lead},
    read_plan::{From, Step, of_block, plan},
    workspace::Workspace,
};

/// The most stored bytes that one fetch brings for several blocks.
const FETCH_BYTES_MAX: usize = 512 << 10;

/// How often a read looks a block up again when the one who was to decode it gave up.
const JOIN_RETRIES_MAX: usize = 16;

/// Reads file data: a format that maps, and the engine that fetches and decodes. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    engine: Arc<Engine>,
    file_system: Arc<dyn FileSystem>,
}

impl Reader {
    /// A reader of `file_system`, which was opened with `engine`.
    pub fn new(engine: Arc<Engine>, file_system: Arc<dyn FileSystem>) -> Self {
        Self { engine, file_system }
    }

    /// The format.
    pub fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.file_system
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Fills `output` with the bytes of a file from `offset` on, and gives how many there were: fewer than asked for
    /// only at the end of the file.
    ///
    /// # Errors
    /// The inode has no data, the image is corrupt or cannot be read.
    pub fn read(&self, nid: Nid, offset: u64, output: &mut [u8]) -> Result<usize> {
        let range = ByteRange::new(offset, output.len() as u64);
        if range.is_empty() {
            return Ok(0);
        }
        self.engine.workspaces.with(|workspace| {
            self.file_system.map(nid, range, &mut workspace.extents)?;
            let mut steps = std::mem::take(&mut workspace.steps);
            let len = plan(range, &workspace.extents, &self.engine.blocks, &mut steps);
            let result = self.run(workspace, &mut steps, output);
            // Dropping what is left frees those who wait for it.
            steps.clear();
            workspace.steps = steps;
            result.map(|()| len).map_err(|error| error.for_inode(nid))
        })
    }

    /// As [`Reader::read`], into pages of the pool, which `completion` is then given. It runs once, on whichever thread
    /// ends the read, perhaps before this returns.
    pub fn read_then(&self, nid: Nid, offset: u64, len: u32, completion: impl FnOnce(Result<&[u8]>) + Send + 'static) {
        let mut pages = match self.engine.pool.temporary(len as usize) {
            Ok(pages) => pages,
            Err(_) => return completion(Err(Error::NoMemory)),
        };
        let result = self.read(nid, offset, &mut pages[..len as usize]);
        completion(result.map(|len| &pages[..len]));
    }

    /// Runs the steps. What others wait for comes first, so that two reads never wait for each other.
    fn run(&self, workspace: &mut Workspace, steps: &mut [Step], output: &mut [u8]) -> Result<()> {
        let mut index = 0;
        while index < steps.len() {
            index = self.run_next(workspace, steps, index, output)?;
        }
        for step in steps.iter_mut().filter(|step| matches!(step.from, From::Join { .. })) {
            let step = Step { output: step.output.clone(), from: std::mem::replace(&mut step.from, From::Done) };
            self.join(workspace, step, output)?;
        }
        Ok(())
    }

    /// Runs step `index`, and those after it that the same fetch serves; gives the first that is left.
    fn run_next(
        &self,
        workspace: &mut Workspace,
        steps: &mut [Step],
        index: usize,
        output: &mut [u8],
    ) -> Result<usize> {
        let step = &mut steps[index];
        let target = &mut output[step.output.clone()];
        match &step.from {
            From::Nowhere => target.fill(0),
            From::Cached { block, skip } => copy(block, *skip, target),
            From::Join { .. } | From::Done => return Ok(index + 1),
            From::Plain { device, offset } => return self.fetch_plain(*device, *offset, steps, index, output),
            From::Whole { .. } | From::Lead { .. } => return self.fetch_blocks(workspace, steps, index, output),
        }
        step.from = From::Done;
        Ok(index + 1)
    }

    /// Fetches plain bytes, and those of the following steps as long as they stand behind one another.
    fn fetch_plain(
        &self,
        device: DeviceId,
        offset: u64,
        steps: &mut [Step],
        index: usize,
        output: &mut [u8],
    ) -> Result<usize> {
        let start = steps[index].output.start;
        let mut next = index;
        let mut end = start;
        while let Some(Step { output, from: From::Plain { device: other, offset: at } }) = steps.get(next)
            && *other == device
            && *at == offset.saturating_add((end - start) as u64)
        {
            end = output.end;
            next += 1;
        }
        self.engine.fetch(device, offset, &mut output[start..end])?;
        Ok(next)
    }

    /// Fetches the block of step `index` and those of the following steps as long as they stand behind one another, and
    /// decodes them.
    fn fetch_blocks(
        &self,
        workspace: &mut Workspace,
        steps: &mut [Step],
        index: usize,
        output: &mut [u8],
    ) -> Result<usize> {
        let mut next = index;
        let mut span: Option<(DeviceId, u64, u64)> = None;
        while let Some(block) = steps.get(next).and_then(block_to_decode) {
            self.engine.check_bounds(block)?;
            let end = block.offset + stored_len(block);
            span = match span {
                None => Some((block.device, block.offset, end)),
                Some((device, start, stop))
                    if device == block.device && stop == block.offset && end - start <= FETCH_BYTES_MAX as u64 =>
                {
                    Some((device, start, end))
                }
                Some(_) => break,
            };
            next += 1;
        }
        let Some((device, start, end)) = span else { return Ok(index + 1) };
        let len = (end - start) as usize;
        let mut pages = self.engine.pool.temporary(len).map_err(|_| Error::NoMemory)?;
        let stored = &mut pages[..len];
        self.engine.fetch(device, start, stored)?;
        for step in &mut steps[index..next] {
            let Some(block) = block_to_decode(step).copied() else { continue };
            let from = (block.offset - start) as usize;
            let stored = &stored[from..from + stored_len(&block) as usize];
            let target = &mut output[step.output.clone()];
            match std::mem::replace(&mut step.from, From::Done) {
                From::Lead { skip, lead, .. } => {
                    let cached = self.decode_for_all(workspace, &block, stored, lead)?;
                    copy(&cached, skip, target);
                }
                _ => {
                    let decoded = self.engine.decode(workspace, &block, stored, 0, target)?;
                    target[decoded..].fill(0);
                }
            }
        }
        Ok(next)
    }

    /// Decodes a block into pages of the cache and gives it to all who wait for it.
    fn decode_for_all(
        &self,
        workspace: &mut Workspace,
        block: &StoredBlock,
        stored: &[u8],
        lead: Lead,
    ) -> Result<Arc<CachedBlock>> {
        let result = self.decode_into_pages(workspace, block, stored).map(Arc::new);
        lead.end(result.clone());
        result
    }

    fn decode_into_pages(&self, workspace: &mut Workspace, block: &StoredBlock, stored: &[u8]) -> Result<CachedBlock> {
        let len = block.decoded_len.bytes() as usize;
        let mut pages = match self.engine.blocks.make_room(&self.engine.pool, len) {
            Some(pages) => pages,
            None => PageRun::from_system(len.div_ceil(crate::PAGE_BYTES)).map_err(|_| Error::NoMemory)?,
        };
        let decoded = self.engine.decode(workspace, block, stored, 0, &mut pages[..len])?;
        let is_complete = !matches!(block.decoded_len, floe_image::DecodedLen::AtLeast(_));
        Ok(CachedBlock::new(pages, decoded, is_complete))
    }

    /// Waits for a block that another read decodes. Where that one gives up, decodes it here.
    fn join(&self, workspace: &mut Workspace, step: Step, output: &mut [u8]) -> Result<()> {
        let From::Join { block, skip, mut flight } = step.from else { return Ok(()) };
        let target = step.output;
        for _ in 0..JOIN_RETRIES_MAX {
            if let Some(cached) = self.engine.blocks.join(&flight, &block)? {
                copy(&cached, skip, &mut output[target]);
                return Ok(());
            }
            match of_block(block, skip, target.len(), &self.engine.blocks) {
                From::Join { flight: next, .. } => flight = next,
                from => return self.run_next(workspace, &mut [Step { output: target, from }], 0, output).map(drop),
            }
        }
        Err(Error::Cancelled)
    }
}

fn block_to_decode(step: &Step) -> Option<&StoredBlock> {
    match &step.from {
        From::Whole { block } | From::Lead { block, .. } => Some(block),
        _ => None,
    }
}

fn stored_len(block: &StoredBlock) -> u64 {
    match block.stored_len {
        StoredLen::Known(len) => u64::from(len),
        // File data always has its length in the map.
        StoredLen::Prefixed => 0,
    }
}

/// Copies decoded bytes from `skip` on; what the block does not hold is zero.
fn copy(block: &CachedBlock, skip: usize, target: &mut [u8]) {
    let bytes = block.bytes().get(skip..).unwrap_or_default();
    let len = bytes.len().min(target.len());
    target[..len].copy_from_slice(&bytes[..len]);
    target[len..].fill(0);
}
