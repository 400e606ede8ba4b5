//! Users other than the one who runs the service: who they are, and their limits.

use std::os::fd::BorrowedFd;

use floe_ipc::{
    encoded,
    protocol::{RefusalKind, ServiceOffer},
};
use floe_keeper::{Access, FuseConfiguration, MountTable, Peer, PeerNamespaces, is_administrator};
use rustix::{
    net::sockopt::socket_peercred,
    process::{DumpableBehavior, Gid, Resource, Rlimit, Uid, geteuid, getrlimit, set_dumpable_behavior, setrlimit},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};
use serde::{Deserialize, Serialize};

use super::{
    control_group::{ControlGroup, DelegatedGroup},
    refusal::Refusal,
};
use crate::{failure::Failure, front::Front, options::Settings, quantity};

/// The maximum number of processes that read images for one user: there is one for each user namespace.
const DOMAINS_MAX: usize = 8;

/// The disk space for kept metadata of one user with `fronts`.
const FRONTS_BYTES: u64 = 256 << 20;

/// The options of a mount that only the user who runs the service may give.
const FOR_ROOT: &str = "is not available to users through the service: mount with -o service=off";

/// Whose a client, a mount or a domain is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) enum Owner {
    /// The user who runs the service, who may see and change everything.
    Service,
    /// Another user.
    User(User),
}

encoded! {
    /// Another user, in one user namespace: a container of this user is somebody else.
    #[derive(Clone, Copy, Serialize, Deserialize, Debug)]
    pub(super) struct User {
        pub(super) uid: u32,
        pub(super) gid: u32,
        /// The user to whom it is accounted.
        pub(super) account: u32,
        /// Distinguishes the user namespace.
        pub(super) namespace: u64,
    }
}

/// A client at the other end of a socket.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) owner: Owner,
    /// Its process; `None` if the client is of the user who runs the service.
    pub(super) peer: Option<Peer>,
}

/// The limits of users for whom the service mounts, besides the one who runs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserLimits {
    /// The mounts of one user.
    mounts_max: usize,
    /// The memory of each process that reads a user's images.
    memory_bytes: u64,
    /// The CPU time of each such process, in percent of one CPU; `None` if it has no limit.
    cpu_percent: Option<u32>,
    /// Whether its threads may be scheduled in real time.
    may_be_real_time: bool,
    /// The disk space for kept metadata of fronts of one user; `None` if users have no fronts.
    fronts_bytes: Option<u64>,
    /// Where such processes get control groups; `None` if nowhere.
    group: Option<DelegatedGroup>,
}

encoded! {
    /// What a domain becomes before it reads an image: a process of a user, with limits.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct DomainUser {
        /// The user.
        pub uid: u32,
        /// The group.
        pub gid: u32,
        /// The maximum size of its memory in bytes.
        pub memory_bytes: u64,
        /// Whether its threads may be scheduled in real time.
        pub may_be_real_time: bool,
    }
}

/// Lets the processes that this one starts have real-time threads once they belong to other users. They inherit the limit.
///
/// # Errors
/// This process may not raise it.
fn permit_real_time() -> rustix::io::Result<()> {
    let limit = getrlimit(Resource::Rtprio);
    match limit.maximum {
        Some(0) => setrlimit(Resource::Rtprio, Rlimit { maximum: Some(1), ..limit }),
        _ => Ok(()),
    }
}

impl DomainUser {
    /// Makes this process, which must have no other threads, one of the user.
    ///
    /// # Errors
    /// This process is not root.
    pub(super) fn assume(self) -> rustix::io::Result<()> {
        let Self { uid, gid, memory_bytes, may_be_real_time } = self;
        let limit = |resource, max| setrlimit(resource, Rlimit { current: Some(max), maximum: Some(max) });
        limit(Resource::Data, memory_bytes)?;
        if may_be_real_time {
            limit(Resource::Rtprio, 1)?;
        }
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        // The user's other processes may not look into this one.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
    }
}

impl PartialEq for User {
    fn eq(&self, other: &Self) -> bool {
        (self.uid, self.namespace) == (other.uid, other.namespace)
    }
}

impl Eq for User {}

impl Owner {
    /// Whether it may see and change what another one owns.
    pub(super) fn may_change(self, other: Self) -> bool {
        self == Self::Service || self == other
    }

    /// Another user, in the user namespace with this identity.
    #[cfg(test)]
    pub(super) fn of_user(uid: u32, account: u32, namespace: u64) -> Self {
        Self::User(User { uid, gid: uid, account, namespace })
    }

    /// The other user.
    pub(super) fn user(self) -> Option<User> {
        match self {
            Self::Service => None,
            Self::User(user) => Some(user),
        }
    }

    /// The user's number.
    pub(super) fn uid(self) -> u32 {
        match self {
            Self::Service => geteuid().as_raw(),
            Self::User(user) => user.uid,
        }
    }

    /// The account of another user.
    pub(super) fn account(self) -> Option<u32> {
        self.user().map(|user| user.account)
    }
}

impl Caller {
    /// The client at the other end of a socket. `limits` are those of other users, if the service serves any.
    ///
    /// # Errors
    /// It serves none, or the client has ended. The text is the reason for a refusal.
    pub(super) fn of(socket: BorrowedFd<'_>, limits: Option<&UserLimits>) -> Result<Self, String> {
        let refused = |error: std::io::Error| format!("the service cannot determine its client: {error}");
        let own = socket_peercred(socket).map_err(|error| refused(error.into()))?.uid == geteuid();
        if own {
            return Ok(Self { owner: Owner::Service, peer: None });
        }
        if limits.is_none() {
            return Err("the service mounts only for the user who has started it: mount with -o service=off".to_owned());
        }
        let peer = Peer::of(socket).map_err(refused)?;
        let namespaces = peer.namespaces().map_err(refused)?;
        let account = namespaces.account(peer.uid).map_err(refused)?;
        let user = User { uid: peer.uid, gid: peer.gid, account, namespace: namespaces.users_identity() };
        Ok(Self { owner: Owner::User(user), peer: Some(peer) })
    }

    /// The namespaces of another user's process.
    ///
    /// # Errors
    /// The process has ended, or is in another user namespace by now.
    pub(super) fn namespaces(&self) -> Result<Option<(&Peer, PeerNamespaces)>, Refusal> {
        let (Some(peer), Owner::User(user)) = (&self.peer, self.owner) else { return Ok(None) };
        let failed = |error: std::io::Error| (RefusalKind::Failed, error.to_string());
        let namespaces = peer.namespaces().map_err(failed)?;
        if namespaces.users_identity() != user.namespace {
            return Err((
                RefusalKind::Failed,
                "the client is in another user namespace by now: connect again".to_owned(),
            ));
        }
        Ok(Some((peer, namespaces)))
    }

    /// What the service offers.
    pub(super) fn offer(&self, limits: Option<&UserLimits>) -> ServiceOffer {
        let mounts = match self.namespaces() {
            Ok(Some((_, namespaces))) => namespaces.admit_mounts(),
            Ok(None) => true,
            Err(_) => false,
        };
        let is_roots = self.owner == Owner::Service && geteuid().is_root();
        let fronts = is_roots || limits.is_some_and(|limits| limits.fronts_bytes.is_some());
        ServiceOffer { users: limits.is_some(), fronts, mounts }
    }
}

impl Default for UserLimits {
    fn default() -> Self {
        Self {
            mounts_max: 100,
            memory_bytes: 1 << 30,
            cpu_percent: None,
            may_be_real_time: false,
            fronts_bytes: None,
            group: None,
        }
    }
}

impl UserLimits {
    /// The default limits with changes: `mounts=COUNT`, `memory=SIZE`, `cpu=PERCENT`, `real-time`, `fronts` or `fronts=SIZE`, separated
    /// by commas.
    ///
    /// # Errors
    /// A word is none of these, or this process is not root of the machine, who alone may mount for others.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        if !geteuid().is_root() || !is_administrator(std::process::id()) {
            return Err(Failure::usage("--users needs root, outside of containers: only root mounts for other users"));
        }
        let mut limits = Self { group: DelegatedGroup::find(), ..Self::default() };
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let wrong = |reason: &str| Failure::usage(format!("--users={word}: {reason}"));
            match word.split_once('=') {
                Some(("mounts", count)) => {
                    limits.mounts_max = count.parse().map_err(|_| wrong("it is not a number of mounts"))?;
                }
                Some(("memory", size)) => {
                    limits.memory_bytes = quantity::bytes(size).map_err(|reason| wrong(&reason))?;
                }
                Some(("cpu", percent)) => {
                    let number = percent.strip_suffix('%').unwrap_or(percent).parse().ok().filter(|number| *number > 0);
                    limits.cpu_percent = Some(number.ok_or_else(|| wrong("it is not a number of percent"))?);
                    if limits.group.is_none() {
                        return Err(wrong("it needs a control group of the service's own (DelegateSubgroup=broker)"));
                    }
                }
                Some(("fronts", size)) => {
                    limits.fronts_bytes = Some(quantity::bytes(size).map_err(|reason| wrong(&reason))?);
                }
                None if word == "real-time" => {
                    permit_real_time().map_err(|error| {
                        wrong(&format!("{error} (it needs CAP_SYS_RESOURCE, or LimitRTPRIO=1 in the unit)"))
                    })?;
                    limits.may_be_real_time = true;
                }
                None if word == "fronts" => limits.fronts_bytes = Some(FRONTS_BYTES),
                _ => {
                    return Err(wrong(
                        "the limits are mounts=COUNT, memory=SIZE, cpu=PERCENT, real-time and fronts=SIZE",
                    ));
                }
            }
        }
        Ok(limits)
    }

    /// The options of a user's domain, if these are those of the service.
    pub(super) fn options(&self, of_service: &str) -> String {
        if self.may_be_real_time { of_service.to_owned() } else { format!("{of_service},priority=normal") }
    }

    /// The disk space for kept metadata of fronts of one user; `None` if users have no fronts.
    pub(super) fn fronts_bytes(&self) -> Option<u64> {
        self.fronts_bytes
    }

    /// What the domain of a user becomes.
    pub(super) fn domain_user(&self, user: User) -> DomainUser {
        let Self { memory_bytes, may_be_real_time, .. } = self;
        DomainUser { uid: user.uid, gid: user.gid, memory_bytes: *memory_bytes, may_be_real_time: *may_be_real_time }
    }

    /// Moves the process of a domain to a control group with these limits, where there can be one.
    pub(super) fn confine(&self, process: u32) -> Option<ControlGroup> {
        self.group.as_ref()?.confine(process, self.memory_bytes, self.cpu_percent).ok()
    }

    /// The control group of a domain that an earlier broker has started.
    pub(super) fn group_of(&self, process: u32) -> Option<ControlGroup> {
        self.group.as_ref()?.of_process(process)
    }

    /// Checks that a user with this number of mounts may have another one. `domains` are the owners of all domains.
    ///
    /// # Errors
    /// A limit is reached.
    pub(super) fn check(&self, user: User, mounts: usize, domains: impl Iterator<Item = Owner>) -> Result<(), Refusal> {
        let refused = |message: String| Err((RefusalKind::NotOffered, message));
        if mounts >= self.mounts_max {
            return refused(format!(
                "user {} has {mounts} mounts, as many as the service permits (floe serve --users=mounts=COUNT)",
                user.account
            ));
        }
        let (mut count, mut has_own) = (0, false);
        for owner in domains.filter(|owner| owner.account() == Some(user.account)) {
            count += 1;
            has_own |= owner == Owner::User(user);
        }
        if !has_own && count >= DOMAINS_MAX {
            return refused(format!("user {} has mounts in too many user namespaces", user.account));
        }
        Ok(())
    }
}

/// Checks the options of a user's mount, and makes the mount `nosuid` and `nodev`. `is_users`: the user's process mounts.
///
/// # Errors
/// The options are root's, or others may not be admitted on this machine.
pub(super) fn check_options(settings: &mut Settings, limits: &UserLimits, is_users: bool) -> Result<(), Refusal> {
    let not_offered = |what: &str| Err((RefusalKind::NotOffered, format!("{what} {FOR_ROOT}")));
    if settings.requires_rings() {
        return not_offered("transport=uring");
    }
    if limits.fronts_bytes.is_none() {
        if settings.front == Front::Kernel {
            let message = "front=kernel is root's here: root permits it to users with floe serve --users=fronts";
            return Err((RefusalKind::NotOffered, message.to_owned()));
        }
        settings.front = Front::Fuse;
    }
    let kernel = &mut settings.mount.kernel;
    if let Some(option) = kernel.others.first() {
        return not_offered(option);
    }
    if kernel.readahead_bytes.is_some() {
        return not_offered("the kernel's read-ahead");
    }
    kernel.flags.nosuid = true;
    kernel.flags.nodev = true;
    if is_users {
        // The kernel knows the options; the process that serves the mount refuses no request because of its user.
        return match kernel.access {
            Some(Access::OwnerAndRoot) => not_offered("access=allow-root in a user namespace"),
            _ => Ok(()),
        };
    }
    let access = *kernel.access.get_or_insert(Access::Owner);
    let configuration = FuseConfiguration::read();
    if access != Access::Owner && !configuration.users_may_admit_others {
        let message = "users may not admit others to their mounts here: root must add the line user_allow_other to /etc/fuse.conf";
        return Err((RefusalKind::NotOffered, message.to_owned()));
    }
    let table = MountTable::read().unwrap_or_default();
    let count = table.entries().iter().filter(|entry| entry.is_fuse()).count();
    match configuration.mounts_max {
        Some(max) if count >= max as usize => {
            let message =
                format!("there are {count} FUSE mounts: root can permit more with mount_max in /etc/fuse.conf");
            Err((RefusalKind::NotOffered, message))
        }
        _ => Ok(()),
    }
}
