//! Manifests that refer to another one: the referrers API of version 1.1 of the distribution specification, and the tag that takes
//! its place in registries without it.

use std::{collections::BTreeMap, time::Duration};

use floe_remote_cache::Digest;
use tokio::time::timeout;

use crate::{
    Version,
    fault::{Fault, FaultKind},
    network::Shared,
    registry::{
        document::{Descriptor, Document, INDEX, Index, MANIFEST},
        resolve::{REFERRERS_BYTES_MAX, Repository},
        upload::Upload,
    },
};

/// The maximum number of referrers of one type that are used.
const REFERRERS_MAX: usize = 8;

/// How long the registry may take to list referrers. They are optional, and callers wait for the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Lists the manifests with this artifact type that refer to `subject`, as far as they are in the first part of the answer. The registry
/// is asked once. The tag is asked for at the same time, so that a registry without the API costs no second round trip.
pub(super) async fn find(
    repository: &Repository,
    shared: &Shared,
    subject: &Digest,
    artifact_type: &str,
) -> Result<Vec<Digest>, Fault> {
    let tag = Version::Tag(fallback_tag(subject));
    let both =
        async { tokio::join!(repository.referrers(shared, subject, artifact_type), repository.document(shared, &tag)) };
    let answers = timeout(PATIENCE, both).await;
    let answers = answers.map_err(|_| Fault::transient(format!("no list of referrers within {PATIENCE:?}")))?;
    let bytes = match answers {
        (Ok(bytes), _) | (Err(_), Ok((_, bytes))) => bytes,
        (Err(api), Err(tag)) => match (api.kind == FaultKind::Gone || api.kind == FaultKind::Refused, &tag.kind) {
            (true, FaultKind::Gone) => return Ok(Vec::new()),
            (true, _) => return Err(tag),
            (false, _) => return Err(api),
        },
    };
    let Document::Index(index) = Document::parse(&bytes)? else { return Ok(Vec::new()) };
    // Registries may ignore the type in the request.
    let fitting = index.manifests.iter().filter(|entry| entry.artifact_type.as_deref() == Some(artifact_type));
    Ok(fitting.filter_map(|entry| entry.digest().ok()).take(REFERRERS_MAX).collect())
}

/// Uploads a manifest that refers to `subject`, so that registries keep it, and clients find it without its digest.
pub(super) async fn push(upload: &Upload, subject: &Digest, artifact_type: &str, bytes: &[u8]) -> Result<(), Fault> {
    let digest = Digest::of(bytes);
    let answer = upload.manifest(&format!("sha256:{digest}"), MANIFEST, bytes).await?;
    if answer.contains_key("oci-subject") {
        return Ok(());
    }
    // For registries without a referrers API, clients maintain the list under a tag.
    let tag = fallback_tag(subject);
    let listed = upload.existing(&tag, REFERRERS_BYTES_MAX).await?;
    let listed = match listed.as_deref().map(Document::parse) {
        Some(Ok(Document::Index(index))) => index.manifests,
        _ => Vec::new(),
    };
    let mut entry = Descriptor::new(MANIFEST, &digest, bytes.len() as u64);
    entry.artifact_type = Some(artifact_type.to_owned());
    let mut manifests = BTreeMap::new();
    for known in listed.into_iter().chain([entry]) {
        manifests.insert(known.digest()?, known);
    }
    let list = serde_json::to_vec(&Index::new(manifests.into_values().collect()));
    let list = list.map_err(|error| Fault::refused(error.to_string()))?;
    upload.manifest(&tag, INDEX, &list).await.map(drop)
}

fn fallback_tag(subject: &Digest) -> String {
    format!("sha256-{subject}")
}
