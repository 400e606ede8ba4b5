//! The remote images of a service: connections of its mounts to the process that fetches them.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use super::{kept_image::KeptImage, ledger::Ledger, messages::Order, record::path, settings::settings_of_request};
use crate::remote;

impl Ledger {
    /// A connection to the image of a mount, if it is remote.
    ///
    /// # Errors
    /// The process that fetches cannot be started.
    pub(super) fn source_of(&self, kept: &KeptImage) -> io::Result<Option<OwnedFd>> {
        let location = path(&kept.request.image);
        if !remote::is_url(&location) {
            return Ok(None);
        }
        let mut settings =
            settings_of_request(&kept.request).map_err(|failure| io::Error::other(failure.to_string()))?;
        let directory = &mut settings.open.remote.cache_directory;
        *directory = directory.take().or_else(|| self.cache_directory.clone());
        self.fetching.open(&location, &settings.open.remote).map(Some)
    }

    /// Gives a domain another connection to the image of one of its mounts.
    pub(super) fn renew_source(self: &Arc<Self>, domain: u64, number: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let kept = state.mounts.get_mut(&number).filter(|kept| kept.domain == domain);
        let Some((kept, domain)) = kept.zip(state.domains.get(&domain)) else { return };
        if !self.fetching.may_renew(number) {
            return;
        }
        // Otherwise, the domain asks again.
        if let Ok(Some(source)) = self.source_of(kept)
            && domain.process.tell_at_once(&Order::Source { number }, &[source.as_fd()]).is_ok()
        {
            kept.files.image = source;
        }
    }

    /// Ends the process that fetches if no image is remote any more.
    pub(super) fn end_fetching_if_unused(&self) {
        let state = self.state.lock();
        let is_remote = |kept: &KeptImage| remote::is_url(&path(&kept.request.image));
        self.fetching.retain(|number| state.mounts.contains_key(&number));
        let is_used = state.mounts.values().any(is_remote) || state.domains.values().any(|domain| domain.expected > 0);
        if !is_used {
            self.fetching.end();
        }
    }
}
