//! The requests in progress, each of which has a thread.

use std::collections::HashMap;

use floe_sync::Mutex;

use super::users::Owner;

/// The maximum number of requests in progress.
const REQUESTS_MAX: usize = 64;

/// The maximum number of those of other users: half, so that they leave room for the user who runs the service. A request takes
/// as long as the file systems of its user take.
const OF_USERS_MAX: usize = REQUESTS_MAX / 2;

/// The maximum number of those of one other user.
const OF_USER_MAX: usize = 4;

/// The requests in progress.
#[derive(Debug, Default)]
pub(super) struct Requests(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    /// Those of other users, by their accounts.
    of_users: HashMap<u32, usize>,
}

impl Requests {
    /// Begins a request. Returns `false` if there are too many.
    pub(super) fn begin(&self, owner: Owner) -> bool {
        let mut counts = self.0.lock();
        let of_users: usize = counts.of_users.values().sum();
        if counts.all >= REQUESTS_MAX {
            return false;
        }
        if let Some(account) = owner.account() {
            let of_user = counts.of_users.get(&account).copied().unwrap_or(0);
            if of_user >= OF_USER_MAX || of_users >= OF_USERS_MAX {
                return false;
            }
            counts.of_users.insert(account, of_user + 1);
        }
        counts.all += 1;
        true
    }

    /// The number of requests in progress.
    pub(super) fn in_progress(&self) -> usize {
        self.0.lock().all
    }

    /// Ends a request.
    pub(super) fn end(&self, owner: Owner) {
        let mut counts = self.0.lock();
        counts.all -= 1;
        if let Some(account) = owner.account()
            && let Some(count) = counts.of_users.get_mut(&account)
        {
            *count -= 1;
            if *count == 0 {
                counts.of_users.remove(&account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_leave_room_for_each_other_and_for_the_service() {
        let requests = Requests::default();
        let user = |uid| Owner::of_user(uid, uid, 1);
        let begun = |owner, count: usize| (0..count).filter(|_| requests.begin(owner)).count();
        assert_eq!(begun(user(1000), 10), OF_USER_MAX);
        let others: usize = (1001..1100).map(|uid| begun(user(uid), 10)).sum();
        assert_eq!(others, OF_USERS_MAX - OF_USER_MAX);
        assert_eq!(begun(Owner::Service, 100), REQUESTS_MAX - OF_USERS_MAX);
        for _ in 0..OF_USER_MAX {
            requests.end(user(1000));
        }
        assert_eq!(begun(user(2000), 1), 1);
        requests.end(Owner::Service);
        assert_eq!(begun(Owner::Service, 10), OF_USER_MAX);
    }
}
