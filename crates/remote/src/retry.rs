//! Decides about retries and the pauses between them.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::{
    Outage,
    fault::{Fault, FaultKind},
};

/// The first and the maximum pause before a retry. Each pause is a random part of twice the previous one.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// How many times the same bytes are requested in total after wrong answers.
const WRONG_ATTEMPTS_MAX: u32 = 2;

/// Decides about retries and the pauses between them.
pub(crate) struct Retry {
    outage: Outage,
    /// The policy after an answer that asks for a pause: the server works.
    busy: Outage,
    /// The start of the time that is limited; `None` if it starts with the next failure.
    began: Option<Instant>,
    attempts: u32,
    wrong_attempts: u32,
    has_renewed: bool,
}

/// The reaction to a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// Retry at once, because the credentials are new.
    AtOnce,
    After(Duration),
    Never,
}

impl Retry {
    pub(crate) fn new(outage: Outage) -> Self {
        Self { outage, busy: outage, began: Some(Instant::now()), attempts: 0, wrong_attempts: 0, has_renewed: false }
    }

    /// For opening an image: gives up early, unless the server asks for a pause.
    pub(crate) fn at_open(outage: Outage) -> Self {
        Self { busy: outage, ..Self::new(outage.at_open()) }
    }

    /// Part of the work is done and need not be repeated. Attempts and time count anew from the next failure.
    pub(crate) fn progressed(&mut self) {
        self.began = None;
        self.attempts = 0;
    }

    /// The time of the last possible retry; `None` if it is too far away to be represented.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.began.unwrap_or_else(Instant::now).checked_add(self.busy.patience())
    }

    /// Whether the fault leads to another attempt at the same place at once, because the credentials are new.
    pub(crate) fn will_renew(&self, fault: &Fault) -> bool {
        matches!(fault.kind, FaultKind::Unauthorized { .. }) && !self.has_renewed
    }

    /// The next attempt is made at another place, which may need other credentials.
    pub(crate) fn is_elsewhere(&mut self) {
        self.has_renewed = false;
    }

    /// The credentials were renewed before the next fault, so they are not renewed at once again.
    pub(crate) fn renewed(&mut self) {
        self.has_renewed = true;
    }

    /// Repeats `attempt` until it succeeds.
    ///
    /// # Errors
    /// The fault of the last attempt.
    pub(crate) async fn run<T>(mut self, attempt: impl AsyncFn() -> Result<T, Fault>) -> Result<T, Fault> {
        loop {
            match attempt().await {
                Ok(done) => return Ok(done),
                Err(fault) => self.after(fault).await?,
            };
        }
    }

    /// Waits until a retry is due. Returns the fault.
    ///
    /// # Errors
    /// The fault, if there is no retry.
    pub(crate) async fn after(&mut self, fault: Fault) -> Result<Fault, Fault> {
        let outage = self.outage_after(&fault);
        let began = *self.began.get_or_insert_with(Instant::now);
        match self.next(&fault, fastrand::f64()) {
            Next::AtOnce => Ok(fault),
            Next::After(pause) if began.elapsed().saturating_add(pause) <= outage.patience() => {
                sleep(pause).await;
                Ok(fault)
            }
            Next::After(_) | Next::Never => Err(fault),
        }
    }

    fn outage_after(&self, fault: &Fault) -> Outage {
        match &fault.kind {
            FaultKind::Transient { retry_after: Some(_), .. } => self.busy,
            _ => self.outage,
        }
    }

    /// `jitter` is at least 0 and less than 1.
    fn next(&mut self, fault: &Fault, jitter: f64) -> Next {
        self.attempts += 1;
        let bound = PAUSE_FIRST.saturating_mul(1 << self.attempts.min(16)).min(PAUSE_MAX);
        let mut pause = bound.mul_f64(jitter);
        match &fault.kind {
            FaultKind::Transient { retry_after, .. } => pause = pause.max(retry_after.unwrap_or_default()),
            FaultKind::Unauthorized { .. } if !self.has_renewed => {
                self.has_renewed = true;
                return Next::AtOnce;
            }
            FaultKind::Unauthorized { .. } if self.outage == Outage::Eio => return Next::Never,
            // Other credentials may be available later.
            FaultKind::Unauthorized { .. } => self.has_renewed = false,
            FaultKind::WrongBytes => {
                self.wrong_attempts += 1;
                return if self.wrong_attempts < WRONG_ATTEMPTS_MAX { Next::AtOnce } else { Next::Never };
            }
            FaultKind::Refused | FaultKind::Gone | FaultKind::Closed => return Next::Never,
        }
        if self.attempts >= self.outage_after(fault).attempts_max() { Next::Never } else { Next::After(pause) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_full_jitter_and_respect_the_server() {
        let mut retry = Retry::new(Outage::Wait(Duration::from_secs(60)));
        for (jitter, expected_ms) in [(0.5, 100), (0.0, 0), (0.5, 400), (1.0, 1600)] {
            let next = retry.next(&Fault::transient(""), jitter);
            assert_eq!(next, Next::After(Duration::from_millis(expected_ms)));
        }
        let later = Fault::congestion("", Some(Duration::from_secs(30)));
        assert_eq!(retry.next(&later, 0.1), Next::After(Duration::from_secs(30)));
        for _ in 0..100 {
            retry.next(&Fault::transient(""), 0.5);
        }
        assert_eq!(retry.next(&Fault::transient(""), 0.5), Next::After(PAUSE_MAX / 2));
    }

    #[test]
    fn pauses_without_end_are_too_long_for_any_policy() {
        let mut retry = Retry::new(Outage::Wait(Duration::from_secs(3600)));
        let never = Fault::congestion("", Some(Duration::MAX));
        let mut waiting = std::pin::pin!(retry.after(never));
        let polled = waiting.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        assert!(matches!(polled, std::task::Poll::Ready(Err(_))));
        assert_eq!(Retry::new(Outage::Wait(Duration::MAX)).until(), None);
    }

    #[test]
    fn opening_waits_only_for_servers_that_ask_for_a_pause() {
        let mut retry = Retry::at_open(Outage::Wait(Duration::from_secs(600)));
        let busy = Fault::congestion("", Some(Duration::from_secs(1)));
        assert!((0..50).all(|_| matches!(retry.next(&busy, 0.0), Next::After(_))));
        assert_eq!(retry.next(&Fault::transient(""), 0.0), Next::Never);
    }

    #[test]
    fn progress_renews_time_and_attempts() {
        let mut retry = Retry::new(Outage::Eio);
        for _ in 0..3 {
            let attempts = (0..10).take_while(|_| retry.next(&Fault::transient(""), 0.0) != Next::Never).count();
            assert_eq!(attempts, 4);
            retry.progressed();
        }
        // Time before the first failure that follows progress does not count.
        let mut retry = Retry::new(Outage::Wait(Duration::from_secs(60)));
        retry.began = Instant::now().checked_sub(Duration::from_secs(120));
        let polled = |retry: &mut Retry| {
            let mut waiting = std::pin::pin!(retry.after(Fault::congestion("", Some(Duration::from_secs(1)))));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            match waiting.as_mut().poll(&mut context) {
                std::task::Poll::Ready(Err(_)) => false,
                std::task::Poll::Ready(Ok(_)) | std::task::Poll::Pending => true,
            }
        };
        assert!(!polled(&mut retry), "the time is over");
        retry.progressed();
        assert!(retry.until().is_some_and(|until| until > Instant::now()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let _entered = runtime.enter();
        assert!(polled(&mut retry), "it waits for a retry");
    }

    #[test]
    fn some_failures_are_final() {
        for (outage, fault, attempts) in [
            (Outage::Eio, Fault::transient(""), 5),
            (Outage::Eio, Fault::gone(""), 1),
            (Outage::Eio, Fault::wrong(""), 2),
            (Outage::Eio, Fault { kind: FaultKind::Unauthorized { challenge: None }, message: String::new() }, 2),
            (Outage::Wait(Duration::MAX), Fault::refused(""), 1),
        ] {
            let mut retry = Retry::new(outage);
            let made = (1..10).find(|_| retry.next(&fault, 0.0) == Next::Never);
            assert_eq!(made, Some(attempts), "{fault:?}");
        }
    }

    #[test]
    fn credentials_are_renewed_once_at_once() {
        let mut retry = Retry::new(Outage::Wait(Duration::from_secs(60)));
        let refused = Fault { kind: FaultKind::Unauthorized { challenge: None }, message: String::new() };
        assert_eq!(retry.next(&refused, 0.5), Next::AtOnce);
        assert_eq!(retry.next(&refused, 0.5), Next::After(Duration::from_millis(200)));
        assert_eq!(retry.next(&refused, 0.5), Next::AtOnce);
    }
}
