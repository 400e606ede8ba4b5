//! What volumes of equal content share.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use floe_image::SourceIdentity;
use floe_sync::Mutex;

use crate::{
    Engine,
    cache::block_share::BlockShare,
    memory::{admission::Admissible, byte_budget::BudgetShare},
    turns::Flow,
};

/// The identities of all sources of a volume.
pub(crate) type ContentIdentity = Vec<SourceIdentity>;

/// What volumes of equal content share: their number in the caches, and their part of the engine's memory and threads.
pub(crate) struct Content {
    engine: Arc<Engine>,
    number: u64,
    /// `None` if it is not known, so that no other volume can have the same content.
    identity: Option<ContentIdentity>,
    /// The part of the block cache that its blocks take.
    pub(crate) blocks: Arc<BlockShare>,
    /// The part of the memory for replies of reads that left the session thread.
    pub(crate) admission: Admissible,
    /// The part of the memory for their stored bytes and decoded blocks.
    pub(crate) decode_budget: Arc<BudgetShare>,
}

/// The contents of an engine.
#[derive(Default)]
pub(crate) struct Contents {
    known: Mutex<HashMap<ContentIdentity, (u64, Weak<Content>)>>,
    last_number: AtomicU64,
}

impl Contents {
    /// Returns a number that no volume and no content has had. It is not 0, the number of [`Flow::ENGINE`].
    pub(crate) fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Relaxed) + 1
    }

    /// Returns the content with this identity, or a new one.
    pub(crate) fn find_or_add(engine: &Arc<Engine>, identity: Option<ContentIdentity>) -> Arc<Content> {
        let Some(identity) = identity else { return Content::new(engine, None) };
        let mut known = engine.contents.known.lock();
        if let Some(content) = known.get(&identity).and_then(|(_, content)| content.upgrade()) {
            return content;
        }
        let content = Content::new(engine, Some(identity.clone()));
        known.insert(identity, (content.number, Arc::downgrade(&content)));
        content
    }

    /// Forgets a content, so that later volumes do not share it.
    fn forget(&self, content: &Content) {
        let Some(identity) = &content.identity else { return };
        let mut known = self.known.lock();
        if known.get(identity).is_some_and(|(number, _)| *number == content.number) {
            known.remove(identity);
        }
    }
}

impl Content {
    fn new(engine: &Arc<Engine>, identity: Option<ContentIdentity>) -> Arc<Self> {
        let number = engine.contents.next_number();
        Arc::new(Self {
            engine: Arc::clone(engine),
            number,
            identity,
            blocks: engine.blocks.share(),
            admission: engine.admission.of(Flow(number)),
            decode_budget: engine.decode_budget.share(),
        })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The flow of its work.
    pub(crate) fn flow(&self) -> Flow {
        Flow(self.number)
    }

    /// Lets no further volume share the content: its sources may be closed, and the numbers of files are used again.
    pub(crate) fn close(&self) {
        self.engine.contents.forget(self);
    }

    /// Removes its bytes from all caches.
    pub(crate) fn leave_caches(&self) {
        if !self.blocks.is_empty() {
            self.engine.blocks.forget(self.number);
        }
        self.engine.forget_metadata(self.number);
        self.engine.fragments.forget_all_of(self.number);
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        self.close();
        self.leave_caches();
    }
}
