//! Requests ranges of one object, with retries.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use floe_image::ByteRange;
use floe_remote_cache::Cause;
use floe_sync::Mutex;
use http::{HeaderMap, HeaderValue, header};
use tokio::time::timeout;

use crate::{
    Outage,
    arrival::Arrival,
    background::{BackgroundRequest, BackgroundRequests},
    counters::{Counters, Event, Stage},
    fault::{Fault, FaultKind},
    host_limit::HostLimit,
    http_client::{Answer, Body, Request},
    network::Shared,
    origin::{Origin, Target},
    range_reply::{RangeReply, Wanted},
    retry::Retry,
};

/// The number of bytes that an answer must contain before it breaks off, to count as progress.
const PROGRESS_BYTES_MIN: usize = 32 << 10;

/// Requests ranges of one object, with retries.
pub(crate) struct Requester {
    pub(crate) shared: Arc<Shared>,
    pub(crate) origin: Origin,
    pub(crate) counters: Arc<Counters>,
    /// How long requests are repeated.
    outage: Outage,
    /// The target of the origin's last redirect, while it works.
    redirected: Mutex<Option<Target>>,
    /// The host of the last request.
    host: Mutex<Option<String>>,
    background: BackgroundRequests,
}

/// A fetched range.
pub(crate) struct Fetched {
    pub(crate) reply: RangeReply,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
}

/// The outcome of one request.
enum Outcome {
    /// All of the range arrived.
    Fetched(RangeReply, HeaderMap),
    /// Cancelled in favour of demand.
    Preempted,
}

/// The mirrors that one fetch has requested from.
#[derive(Default)]
struct Mirrors {
    last: Option<usize>,
    /// The mirrors that gave a final answer.
    refused: Vec<usize>,
    /// The final answer of the registry itself, while other mirrors remain.
    of_registry: Option<Fault>,
}

impl Requester {
    pub(crate) fn new(shared: Arc<Shared>, origin: Origin) -> Self {
        let (counters, outage) = (Arc::new(Counters::new()), shared.options.outage);
        Self::with(shared, origin, counters, outage)
    }

    /// Requests are counted by `counters`, and repeated according to `outage`.
    pub(crate) fn with(shared: Arc<Shared>, origin: Origin, counters: Arc<Counters>, outage: Outage) -> Self {
        Self {
            shared,
            origin,
            counters,
            outage,
            redirected: Mutex::default(),
            host: Mutex::default(),
            background: BackgroundRequests::default(),
        }
    }

    /// Requests a range, with retries.
    ///
    /// # Errors
    /// The fault of the last attempt.
    pub(crate) async fn fetch(&self, wanted: &Wanted<'_>, cause: Cause) -> Result<Fetched, Fault> {
        self.fetch_into(Arrival::default(), wanted, cause).await
    }

    /// Like [`Requester::fetch`]; the bytes arrive in `arrival`.
    pub(crate) async fn fetch_into(
        &self,
        arrival: Arrival,
        wanted: &Wanted<'_>,
        cause: Cause,
    ) -> Result<Fetched, Fault> {
        // An unknown length means that the object is being opened.
        let is_opening = wanted.object_len.is_none();
        let retry = if is_opening { Retry::at_open(self.outage) } else { Retry::new(self.outage) };
        let fetched = self.fetch_with_retries(wanted, cause, (retry, arrival)).await;
        match &fetched {
            Ok(fetched) => self.counters.fetched(cause, fetched.bytes.len() as u64),
            Err(_) => self.counters.count(Event::Failed),
        }
        fetched
    }

    /// Switches to another mirror than `mirror`, or than the current one, for the next attempt. Returns whether there is one.
    pub(crate) fn turn_away(&self, mirror: Option<usize>) -> bool {
        self.redirect(None);
        self.origin.turn_away(mirror)
    }

    /// Raises background requests for parts of `range` to the priority of demand.
    pub(crate) fn promote(&self, range: ByteRange) {
        self.background.promote(range);
    }

    /// The limit of the host of the last request.
    pub(crate) fn limit(&self) -> Option<Arc<HostLimit>> {
        let host = self.host.lock();
        host.as_ref().map(|host| self.shared.limits.of(host))
    }

    fn redirect(&self, target: Option<Target>) {
        *self.redirected.lock() = target;
    }

    async fn fetch_with_retries(
        &self,
        wanted: &Wanted<'_>,
        cause: Cause,
        (mut retry, mut came): (Retry, Arrival),
    ) -> Result<Fetched, Fault> {
        let (mut asked, mut before) = (Mirrors::default(), 0);
        let noted = (cause == Cause::Prefetch).then(|| self.background.add(wanted.range));
        loop {
            // Bytes that arrived before an answer broke off are not requested again.
            let range = ByteRange::between(wanted.range.offset() + came.len() as u64, wanted.range.end());
            let wanted_now = Wanted { range, ..*wanted };
            let attempt = self.attempt(&wanted_now, noted.as_ref(), retry.until(), &mut came, &mut asked);
            let mut fault = match attempt.await {
                Ok(Outcome::Fetched(reply, headers)) => {
                    return Ok(Fetched { reply, headers, bytes: came.into_bytes() });
                }
                Ok(Outcome::Preempted) => {
                    self.counters.count(Event::Preempted);
                    continue;
                }
                Err(fault) => fault,
            };
            let is_partly_here = !came.is_empty() && (came.len() as u64) < wanted.range.len();
            if !is_partly_here || wanted.object_len.is_none() || !matches!(fault.kind, FaultKind::Transient { .. }) {
                came.clear();
            }
            if came.len() >= before + PROGRESS_BYTES_MIN {
                retry.progressed();
            }
            before = came.len();
            let will_renew = retry.will_renew(&fault);
            match &mut fault.kind {
                FaultKind::Transient { retry_after, .. } => {
                    self.counters.out_of_reach();
                    if self.turn_away(asked.last) {
                        // The pause is one host's, and the next attempt goes to another one.
                        *retry_after = None;
                    }
                }
                FaultKind::WrongBytes => {
                    self.counters.count(Event::Wrong);
                    self.turn_away(asked.last);
                }
                // Mirrors may lack the object, or refuse this user. The answer of the registry itself decides. It is the last of
                // the mirrors, but comes first if another fetch has switched to it.
                FaultKind::Gone | FaultKind::Refused | FaultKind::Unauthorized { .. } if !will_renew => {
                    let count = self.origin.mirrors();
                    if asked.leaves_another(count) {
                        if asked.last == count.checked_sub(1) {
                            asked.of_registry = Some(fault);
                        }
                        self.turn_away(asked.last);
                        retry.is_elsewhere();
                        self.counters.count(Event::Retried);
                        continue;
                    }
                    if let Some(of_registry) = asked.of_registry.take() {
                        fault = of_registry;
                        retry.renewed();
                    }
                    // A later attempt may have other credentials, and asks all of them again.
                    asked = Mirrors::default();
                }
                FaultKind::Gone | FaultKind::Refused | FaultKind::Unauthorized { .. } => {}
                FaultKind::Closed => {}
            }
            retry.after(fault).await?;
            self.counters.count(Event::Retried);
        }
    }

    /// Sends one request, at `latest` if the host asked for a pause. After a refusal, renews the credentials for the next
    /// attempt.
    async fn attempt(
        &self,
        wanted: &Wanted<'_>,
        noted: Option<&BackgroundRequest<'_>>,
        latest: Option<Instant>,
        came: &mut Arrival,
        asked: &mut Mirrors,
    ) -> Result<Outcome, Fault> {
        let began = Instant::now();
        let redirected = self.redirected.lock().clone();
        let is_redirected = redirected.is_some();
        let target = match redirected {
            Some(target) => target,
            None => self.origin.target(&self.shared.authenticator).await?,
        };
        asked.last = Some(target.mirror);
        self.counters.took(Stage::Resolve, began.elapsed());
        let host = host_of(&target);
        let limit = self.shared.limits.of(&host);
        *self.host.lock() = Some(host);
        let outcome = self.request(&target, &limit, wanted, (noted, latest), came).await;
        let Err(fault) = outcome else { return outcome };
        match &fault.kind {
            FaultKind::Transient { retry_after, is_congestion: true } => {
                limit.is_congested(*retry_after);
                self.counters.count(Event::Throttled);
            }
            FaultKind::Unauthorized { .. } | FaultKind::Gone | FaultKind::Refused if is_redirected => {
                // Most likely an expired signature: the origin will provide a new one.
                self.redirect(None);
                self.counters.count(Event::ResolvedAgain);
                return Err(Fault { kind: FaultKind::Unauthorized { challenge: None }, message: fault.message });
            }
            FaultKind::Unauthorized { challenge } => {
                let renewed = self.origin.renew(&target, challenge.as_deref(), &self.shared.authenticator).await;
                renewed.map_err(|other| Fault { message: format!("{}: {}", fault.message, other.message), ..other })?;
                self.counters.count(Event::ResolvedAgain);
            }
            _ => {}
        }
        Err(fault)
    }

    async fn request(
        &self,
        target: &Target,
        limit: &Arc<HostLimit>,
        wanted: &Wanted<'_>,
        (noted, latest): (Option<&BackgroundRequest<'_>>, Option<Instant>),
        came: &mut Arrival,
    ) -> Result<Outcome, Fault> {
        let queued = Instant::now();
        let place = noted.map_or_else(|| limit.queue(true), |noted| noted.queue(limit));
        let slot = limit.acquire(place, latest).await.map_err(paused_until)?;
        self.counters.took(Stage::Queue, queued.elapsed());
        tokio::select! {
            biased;
            answer = self.exchange(target, limit, wanted, came) => {
                answer.map(|(reply, headers)| Outcome::Fetched(reply, headers))
            }
            () = slot.preempted() => Ok(Outcome::Preempted),
        }
    }

    async fn exchange(
        &self,
        target: &Target,
        limit: &HostLimit,
        wanted: &Wanted<'_>,
        came: &mut Arrival,
    ) -> Result<(RangeReply, HeaderMap), Fault> {
        let client = &self.shared.client;
        let sent = Instant::now();
        let (headers, secrets) = (headers(wanted)?, target.secrets.clone());
        let request = Request { headers, secrets, ..Request::get(target.url.clone()) };
        let Answer { response, url } = client.send(request).await?;
        let headers = response.headers().clone();
        let is_redirected = url.origin() != target.url.origin();
        let mut reply = RangeReply::judge(response.status(), &headers, wanted);
        if let Err(Fault { kind: FaultKind::Unauthorized { challenge }, .. }) = &mut reply
            && is_redirected
        {
            // The credentials are not for the target of a redirect, nor for the token server that it names.
            *challenge = None;
        }
        let reply = reply?;
        let first_byte = sent.elapsed();
        self.counters.took(Stage::FirstByte, first_byte);
        if is_redirected {
            self.redirect(Some(Target { url, secrets: HeaderMap::new(), mirror: target.mirror }));
        }
        let began = Instant::now();
        let body = Body::new(response, client.stall());
        let added = timeout(reply.time_max(client.stall()), reply.add_to(came, body)).await;
        added.map_err(|_| Fault::congestion("the answer comes too slowly", None))??;
        self.counters.took(Stage::Transfer, began.elapsed());
        limit.went_well(first_byte, began.elapsed(), reply.len);
        Ok((reply, headers))
    }
}

impl Mirrors {
    /// Notes that the last answer was final. Returns whether one of `count` mirrors has not given a final answer.
    fn leaves_another(&mut self, count: usize) -> bool {
        let Some(last) = self.last else { return false };
        if !self.refused.contains(&last) {
            self.refused.push(last);
        }
        self.refused.len() < count
    }
}

/// The fault of a request that was not sent, because the pause that its host asked for is longer than the read may wait.
fn paused_until(end: Instant) -> Fault {
    let rest = end.saturating_duration_since(Instant::now());
    let message = format!("the server asked for a pause, which lasts {} s more", rest.as_secs());
    Fault { kind: FaultKind::Transient { retry_after: Some(rest), is_congestion: false }, message }
}

/// The host and port of a target.
fn host_of(target: &Target) -> String {
    format!("{}:{}", target.url.host_str().unwrap_or_default(), target.url.port_or_known_default().unwrap_or_default())
}

fn headers(wanted: &Wanted<'_>) -> Result<HeaderMap, Fault> {
    let mut headers = HeaderMap::new();
    let last = wanted.range.end().checked_sub(1).ok_or_else(|| Fault::refused("an empty range"))?;
    let range = HeaderValue::from_str(&format!("bytes={}-{last}", wanted.range.offset()));
    headers.insert(header::RANGE, range.map_err(|_| Fault::refused("the range is not a valid header value"))?);
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(etag) = wanted.validator.and_then(|validator| validator.strong_etag()) {
        headers.insert(header::IF_MATCH, etag.clone());
    }
    Ok(headers)
}
