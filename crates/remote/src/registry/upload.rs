//! Uploads blobs and manifests to a registry.

use std::{cell::Cell, fs::File, os::unix::fs::FileExt, sync::Arc};

use bytes::Bytes;
use floe_remote_cache::Digest;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use url::Url;

use crate::{
    authentication::ProtectionSpace,
    fault::{Fault, FaultKind},
    http_client::{Answer, Request},
    network::Shared,
    registry::{document::ACCEPTED, endpoint::Endpoint},
    retry::Retry,
};

/// The size of upload pieces, in bytes. A smaller blob is sent in one request.
const PIECE_BYTES: u64 = 8 << 20;

/// The destination repository of uploads.
pub(crate) struct Upload {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    repository: String,
    space: ProtectionSpace,
}

/// The content of a blob.
pub(crate) enum Content<'a> {
    Bytes(&'a [u8]),
    File { file: &'a File, len: u64 },
}

impl Content<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { len, .. } => *len,
        }
    }

    fn piece(&self, offset: u64) -> Result<Bytes, Fault> {
        let len = usize::try_from(PIECE_BYTES.min(self.len() - offset)).unwrap_or(usize::MAX);
        match self {
            Self::Bytes(bytes) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                Ok(Bytes::copy_from_slice(bytes.get(from..from + len).unwrap_or_default()))
            }
            Self::File { file, .. } => {
                let mut piece = vec![0; len];
                let read = file.read_exact_at(&mut piece, offset);
                read.map_err(|error| Fault::refused(format!("the image cannot be read: {error}")))?;
                Ok(piece.into())
            }
        }
    }
}

impl Upload {
    pub(crate) fn new(shared: &Arc<Shared>, endpoint: Endpoint, repository: String) -> Self {
        let space = endpoint.space(&format!("repository:{repository}:pull,push"));
        Self { shared: Arc::clone(shared), endpoint, repository, space }
    }

    /// Uploads a blob unless the registry has it. `progress` receives the number of uploaded bytes.
    ///
    /// # Errors
    /// The registry refuses the blob.
    pub(crate) async fn blob(
        &self,
        digest: &Digest,
        content: &Content<'_>,
        progress: &dyn Fn(u64),
    ) -> Result<(), Fault> {
        let mut retry = Retry::new(self.shared.options.outage);
        // A piece may take longer than retries may.
        retry.progressed();
        // Where an interrupted upload continues.
        let (mut place, accepted) = (None, Cell::new(0));
        let mut accepted_before = 0;
        let counted = |done: u64| {
            accepted.set(accepted.get().max(done));
            progress(done);
        };
        loop {
            match self.blob_from(digest, content, &mut place, &counted).await {
                Ok(()) => return Ok(()),
                Err(fault) => {
                    if !matches!(fault.kind, FaultKind::Transient { .. }) {
                        place = None;
                    }
                    if accepted.get() > accepted_before {
                        accepted_before = accepted.get();
                        retry.progressed();
                    }
                    retry.after(fault).await?;
                }
            }
        }
    }

    /// Whether the registry has a blob.
    ///
    /// # Errors
    /// The registry does not answer.
    pub(crate) async fn has_blob(&self, digest: &Digest) -> Result<bool, Fault> {
        let url = self.endpoint.url(&self.repository, &format!("blobs/sha256:{digest}"))?;
        let has = async || {
            let answer = self.ask(Method::HEAD, &url, &HeaderMap::new(), None).await?;
            match answer.response.status() {
                StatusCode::OK => Ok(true),
                StatusCode::NOT_FOUND => Ok(false),
                status => Err(Fault::of_answer(status, answer.response.headers())),
            }
        };
        Retry::new(self.shared.options.outage).run(has).await
    }

    /// Lets the repository share a blob of another repository of the registry. Returns whether the registry did so.
    ///
    /// # Errors
    /// The registry does not answer.
    pub(crate) async fn mount_blob(&self, digest: &Digest, from: &str) -> Result<bool, Fault> {
        let mut url = self.endpoint.url(&self.repository, "blobs/uploads/")?;
        url.query_pairs_mut().append_pair("mount", &format!("sha256:{digest}")).append_pair("from", from);
        let answer = self.ask(Method::POST, &url, &HeaderMap::new(), Some(Bytes::new())).await?;
        Ok(answer.response.status() == StatusCode::CREATED)
    }

    async fn blob_from(
        &self,
        digest: &Digest,
        content: &Content<'_>,
        place: &mut Option<Url>,
        progress: &dyn Fn(u64),
    ) -> Result<(), Fault> {
        let url = self.endpoint.url(&self.repository, &format!("blobs/sha256:{digest}"))?;
        if self.ask(Method::HEAD, &url, &HeaderMap::new(), None).await?.response.status() == StatusCode::OK {
            progress(content.len());
            return Ok(());
        }
        let mut done = 0;
        let mut at = match place.take() {
            Some(url) => {
                let answer = self.ask(Method::GET, &url, &HeaderMap::new(), None).await?;
                let answer = expect(answer, StatusCode::NO_CONTENT)?;
                let range = answer.response.headers().get(header::RANGE).and_then(|value| value.to_str().ok());
                let last = range.and_then(|range| range.trim_start_matches("bytes=").strip_prefix("0-")?.parse().ok());
                done = last.map_or(0, |last: u64| last.saturating_add(1));
                // A range of 0-0 can mean no bytes or one byte.
                if done <= 1 || done > content.len() { self.begin().await? } else { next_place(&answer)? }
            }
            None => self.begin().await?,
        };
        if done <= 1 || done > content.len() {
            done = 0;
        }
        while content.len() - done > PIECE_BYTES || (done > 0 && done < content.len()) {
            *place = Some(at.clone());
            let piece = content.piece(done)?;
            let last = done + piece.len() as u64 - 1;
            let headers = [
                (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
                (header::CONTENT_RANGE, format!("{done}-{last}")),
            ];
            let answer = self.ask(Method::PATCH, &at, &header_map(headers)?, Some(piece)).await?;
            at = next_place(&expect(answer, StatusCode::ACCEPTED)?)?;
            done = last + 1;
            progress(done);
        }
        let rest = if done < content.len() || content.len() == 0 { content.piece(done)? } else { Bytes::new() };
        at.query_pairs_mut().append_pair("digest", &format!("sha256:{digest}"));
        let headers = header_map([(header::CONTENT_TYPE, "application/octet-stream".to_owned())])?;
        expect(self.ask(Method::PUT, &at, &headers, Some(rest)).await?, StatusCode::CREATED)?;
        *place = None;
        progress(content.len());
        Ok(())
    }

    /// Uploads a manifest or an index under a tag or its digest.
    ///
    /// # Errors
    /// The registry refuses it.
    pub(crate) async fn manifest(&self, name: &str, media_type: &str, bytes: &[u8]) -> Result<HeaderMap, Fault> {
        let url = self.endpoint.url(&self.repository, &format!("manifests/{name}"))?;
        let headers = header_map([(header::CONTENT_TYPE, media_type.to_owned())])?;
        let body = Bytes::copy_from_slice(bytes);
        let put = async || {
            let answer = self.ask(Method::PUT, &url, &headers, Some(body.clone())).await?;
            Ok(expect(answer, StatusCode::CREATED)?.response.headers().clone())
        };
        Retry::new(self.shared.options.outage).run(put).await
    }

    /// Reads the manifest under a tag, if there is one.
    ///
    /// # Errors
    /// The registry does not answer the question.
    pub(crate) async fn existing(&self, tag: &str, bytes_max: u64) -> Result<Option<Bytes>, Fault> {
        let url = self.endpoint.url(&self.repository, &format!("manifests/{tag}"))?;
        let headers = header_map([(header::ACCEPT, ACCEPTED.to_owned())])?;
        let answer = self.ask(Method::GET, &url, &headers, None).await?;
        match answer.response.status() {
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::OK => self.shared.client.body(answer.response, bytes_max).await.map(Some),
            status => Err(Fault::of_answer(status, answer.response.headers())),
        }
    }

    async fn begin(&self) -> Result<Url, Fault> {
        let url = self.endpoint.url(&self.repository, "blobs/uploads/")?;
        let answer = self.ask(Method::POST, &url, &HeaderMap::new(), Some(Bytes::new())).await?;
        next_place(&expect(answer, StatusCode::ACCEPTED)?)
    }

    async fn ask(&self, method: Method, url: &Url, headers: &HeaderMap, body: Option<Bytes>) -> Result<Answer, Fault> {
        let is_home = url.origin() == self.endpoint.base.origin();
        let request = Request { method, headers: headers.clone(), body, ..Request::get(url.clone()) };
        if is_home {
            let request = Request { secrets: self.endpoint.headers.clone(), ..request };
            self.shared.authenticator.send(&self.space, request).await
        } else {
            // Some registries redirect uploads to other hosts; the URL contains the authorisation.
            self.shared.client.send(request).await
        }
    }
}

fn expect(answer: Answer, status: StatusCode) -> Result<Answer, Fault> {
    let found = answer.response.status();
    if found == status {
        return Ok(answer);
    }
    let fault = Fault::of_answer(found, answer.response.headers());
    // If this upload no longer exists, a new one may succeed.
    let kind = if fault.kind == FaultKind::Gone { Fault::transient("").kind } else { fault.kind };
    Err(Fault { kind, ..fault })
}

/// The URL at which an upload continues.
fn next_place(answer: &Answer) -> Result<Url, Fault> {
    let location = answer.response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
    let place = location.and_then(|location| answer.url.join(location).ok());
    let place = place.ok_or_else(|| Fault::transient("the registry does not say where the upload continues"))?;
    if answer.url.scheme() == "https" && place.scheme() != "https" {
        return Err(Fault::refused("the registry redirects the upload to a URL without TLS"));
    }
    Ok(place)
}

fn header_map<const COUNT: usize>(pairs: [(HeaderName, String); COUNT]) -> Result<HeaderMap, Fault> {
    let parsed = pairs.into_iter().map(|(name, value)| HeaderValue::try_from(value).map(|value| (name, value)));
    parsed.collect::<Result<_, _>>().map_err(|_| Fault::refused("invalid header name or value"))
}
