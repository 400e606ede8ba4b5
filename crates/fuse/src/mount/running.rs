//! Begins the service of a mount.

use std::{
    num::NonZero,
    sync::{Arc, mpsc::Receiver},
};

use floe_engine::Sink;
use floe_fuse_wire::{Agreement, Channel, Notifier};
use floe_keeper::AutoUnmount;

use super::{
    Ended, end_sender::EndSender, error::MountError, handover::Handover, link::Link, session::Session,
    transport::Transport, unmounter::Unmounter,
};
use crate::{
    MountSetup, Sessions,
    connection::Connection,
    edge::{FuseEdge, kernel_pages::KernelPages},
    session_pool::{Member, SessionPool},
};

/// The handles that the mount keeps of a session once it is served.
pub(super) struct Running {
    pub(super) ended: Receiver<Ended>,
    pub(super) sender: EndSender,
    pool: Arc<SessionPool>,
    /// The number of the connection in the pool.
    number: u64,
    channels: Vec<Channel>,
    agreement: Agreement,
    pub(super) transport: Transport,
}

impl Running {
    /// Negotiates with the kernel, unless that was done before, and lets the session threads of a pool serve the connection.
    /// Without `sessions`, starts threads of its own. A connection of another process is paused.
    ///
    /// # Errors
    /// The negotiation fails, or threads cannot be started.
    pub(super) fn start(
        mut edge: FuseEdge,
        link: Link,
        connection: Arc<Connection>,
        setup: &MountSetup,
        unmounter: &Unmounter,
        page_cache: impl FnOnce(KernelPages) -> Box<dyn Sink>,
    ) -> Result<Self, MountError> {
        let MountSetup { options, handles, .. } = setup;
        let Link { channel, mut of_threads, agreement, is_inherited: is_paused, .. } = link;
        let agreement = match agreement {
            Some(agreement) => {
                edge.resume(agreement);
                agreement
            }
            None => edge.negotiate(&channel).map_err(MountError::Handshake)?,
        };
        // Another process that serves the connection waits for requests by polling from now on.
        channel.set_nonblocking().map_err(MountError::Handshake)?;
        let (reader, served) = edge.parts();
        let file_system = Arc::clone(reader.file_system());
        let pages = KernelPages { notifier: Notifier::new(channel.clone()), served, file_system };
        reader.set_sink(page_cache(pages));
        let (ended, receiver) = EndSender::new(setup.hooks.ended.clone());
        let deadlines = Arc::clone(edge.deadlines());
        let session = Session::new(edge, Arc::clone(&connection), unmounter.clone(), ended.clone());
        let session = Arc::new(session);
        let thread_count = NonZero::get(options.threads);
        let sessions = match &handles.sessions {
            Some(sessions) => sessions.clone(),
            None => Sessions::without_threads(thread_count, options.busy_polling, true).map_err(MountError::Threads)?,
        };
        let pool = sessions.pool();
        let transport = Transport::begin(&session, pool, &channel, agreement, handles.rings.as_ref())?;
        if let Some(rings) = &handles.rings {
            rings.release_permission();
        }
        let (own_count, name) = match (&transport, &handles.sessions) {
            (_, Some(_)) => (0, None),
            // The device delivers only FORGET and INTERRUPT.
            (Transport::Rings(_), None) => (1, Some("floe-fuse/dev")),
            (Transport::Device | Transport::DeviceWithout(_), None) => (thread_count, None),
        };
        // Threads with rings must not block: no other thread would take the requests of their CPU.
        if !matches!(transport, Transport::Rings(_)) {
            pool.permit_blocking(session.edge.volume());
        }
        while options.clone_fd && of_threads.len() < pool.thread_count_max() {
            of_threads.push(channel.join_without_waiting().map_err(MountError::Handshake)?);
        }
        for _ in 0..own_count {
            pool.start_thread(session.edge.volume().engine(), name).map_err(MountError::Threads)?;
        }
        let channels: Vec<_> = std::iter::once(channel).chain(of_threads).collect();
        let member = Member::new(connection, channels.clone(), deadlines, session);
        let number = pool.join(member, is_paused).map_err(MountError::Threads)?;
        let pool = Arc::clone(pool);
        Ok(Self { ended: receiver, sender: ended, pool, number, channels, agreement, transport })
    }

    /// A handle that hands the mount over.
    pub(super) fn handover(&mut self, auto_unmount: Option<AutoUnmount>, unmounter: &Unmounter) -> Handover {
        let channels = std::mem::take(&mut self.channels);
        let (pool, sender) = (Arc::clone(&self.pool), self.sender.clone());
        let auto_unmount = auto_unmount.map(Arc::new);
        Handover::new((pool, self.number), channels, self.agreement, auto_unmount, unmounter.clone(), sender)
    }
}
