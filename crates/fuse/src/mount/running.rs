//! Starts the threads of a mount.

use std::{
    num::NonZero,
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
};

use floe_engine::Sink;
use floe_fuse_wire::{Agreement, Channel, Notifier};
use floe_keeper::AutoUnmount;

use super::{
    Ended,
    end_sender::EndSender,
    error::MountError,
    handover::Handover,
    link::Link,
    session::{Session, SessionEnd, spawn, watch},
    transport::Transport,
    unmounter::Unmounter,
};
use crate::{
    MountSetup,
    connection::{ConnectionEnd, Rescue},
    edge::{FuseEdge, kernel_pages::KernelPages},
    requests::deadline::Deadlines,
    session_pool::gate::Gate,
};

/// The handles that the mount keeps of a session once its threads run.
pub(super) struct Running {
    pub(super) ended: Receiver<Ended>,
    pub(super) sender: EndSender,
    gate: Arc<Gate>,
    channels: Vec<Channel>,
    agreement: Agreement,
    pub(super) transport: Transport,
}

impl Running {
    /// Negotiates with the kernel, unless that was done before, and starts the session threads and the watchdog.
    ///
    /// # Errors
    /// The negotiation fails, or threads cannot be started.
    pub(super) fn start(
        mut edge: FuseEdge,
        link: Link,
        deadlines: Arc<Deadlines>,
        setup: &MountSetup,
        unmounter: &Unmounter,
        page_cache: impl FnOnce(KernelPages) -> Box<dyn Sink>,
    ) -> Result<Self, MountError> {
        let MountSetup { options, handles, .. } = setup;
        let Link { channel, mut of_threads, agreement, .. } = link;
        let agreement = match agreement {
            Some(agreement) => {
                edge.resume(agreement);
                agreement
            }
            None => edge.negotiate(&channel).map_err(MountError::Handshake)?,
        };
        let gate = Arc::clone(edge.gate());
        let (reader, served, pending) = edge.parts();
        let counts = served.counts.clone();
        let file_system = Arc::clone(reader.file_system());
        let pages = KernelPages { notifier: Notifier::new(channel.clone()), served, file_system };
        reader.set_sink(page_cache(pages));
        let rescue = channel.join_without_waiting().ok().map(Rescue::new);
        if let Ok(channel) = channel.join_without_waiting() {
            pending.look_at(channel);
        }
        let (ended, receiver) = EndSender::new(setup.hooks.ended.clone());
        let (session_ended, session_end) = mpsc::channel();
        let (watchdog_unmounter, watchdog_ended, watched_gate) = (unmounter.clone(), ended.clone(), Arc::clone(&gate));
        let volume = Arc::clone(edge.volume());
        let work = move || {
            if watch(&volume, &deadlines, &counts, rescue, &watched_gate, &session_end) == SessionEnd::Stuck {
                // An aborted connection leaves a dead mount, which must still be unmounted.
                if pending.connection_end() != Some(ConnectionEnd::Aborted) {
                    watchdog_unmounter.note_end();
                }
                watchdog_ended.send(Ended::Stuck);
            }
        };
        spawn("floe-watch".to_owned(), work)?;
        let session = Arc::new(Session::new(edge, unmounter.clone(), ended.clone(), session_ended));
        let transport = Transport::begin(&session, &channel, agreement, handles.rings.as_ref())?;
        if let Some(rings) = &handles.rings {
            rings.release_permission();
        }
        let thread_count = match transport {
            // The device delivers only FORGET and INTERRUPT.
            Transport::Rings(_) => 1,
            Transport::Device | Transport::DeviceWithout(_) => NonZero::get(options.threads),
        };
        if thread_count > 1 {
            session.edge.permit_blocking();
        }
        while options.clone_fd && of_threads.len() < thread_count {
            of_threads.push(channel.join().map_err(MountError::Handshake)?);
        }
        for thread in 0..thread_count {
            let channel = of_threads.get(thread).unwrap_or(&channel).clone();
            let name = match transport {
                Transport::Rings(_) => "floe-fuse/dev".to_owned(),
                Transport::Device | Transport::DeviceWithout(_) => format!("floe-fuse/{thread}"),
            };
            session.start_thread(name, None, move |session, adopted| {
                session.note(|edge| edge.serve(&channel, thread, adopted));
            })?;
        }
        let channels = std::iter::once(channel).chain(of_threads).collect();
        Ok(Self { ended: receiver, sender: ended, gate, channels, agreement, transport })
    }

    /// A handle that hands the mount over.
    pub(super) fn handover(&mut self, auto_unmount: Option<AutoUnmount>, unmounter: &Unmounter) -> Handover {
        let channels = std::mem::take(&mut self.channels);
        let (gate, sender) = (Arc::clone(&self.gate), self.sender.clone());
        Handover::new(gate, channels, self.agreement, auto_unmount.map(Arc::new), unmounter.clone(), sender)
    }
}
