//! Why the service refuses a request.

use std::io;

use floe_ipc::protocol::RefusalKind;

use crate::failure::Failure;

/// Why a request is refused, or a domain does not serve a mount.
pub(super) type Refusal = (RefusalKind, String);

/// The refusal of a request because of a failure in this process.
pub(super) fn refusal(failure: Failure) -> Refusal {
    let kind = if let Failure::Usage(_) = failure { RefusalKind::Usage } else { RefusalKind::Failed };
    (kind, failure.to_string())
}

/// The failure of a call because of too many open files.
pub(super) fn no_descriptors(error: io::Error) -> Failure {
    Failure::failed(format!("the service has too many open files: {error}: raise the limit (ulimit -n)"))
}
