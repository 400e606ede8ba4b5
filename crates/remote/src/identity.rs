//! The names of locations in the cache.

use floe_remote_cache::Digest;
use url::{Url, form_urlencoded::parse};

use crate::{RemoteLocation, fault::Fault, location::shown, origin::Bucket};

/// The parameters of signatures in queries. If a query has all parameters of a row's first list, those of both lists are ignored,
/// because the next signature of the same URL differs. The rest of the query can select another object.
const SIGNATURES: [(&[&str], &[&str]); 7] = [
    // S3, version 4.
    (
        &["X-Amz-Signature"],
        &[
            "X-Amz-Algorithm",
            "X-Amz-Credential",
            "X-Amz-Date",
            "X-Amz-Expires",
            "X-Amz-Security-Token",
            "X-Amz-SignedHeaders",
        ],
    ),
    // S3, version 2.
    (&["AWSAccessKeyId", "Signature", "Expires"], &["x-amz-security-token"]),
    // Google Cloud Storage, versions 4 and 2.
    (
        &["X-Goog-Signature"],
        &["X-Goog-Algorithm", "X-Goog-Credential", "X-Goog-Date", "X-Goog-Expires", "X-Goog-SignedHeaders"],
    ),
    (&["GoogleAccessId", "Signature", "Expires"], &[]),
    // Azure.
    (
        &["sig", "sv"],
        &[
            "saoid", "scid", "sdd", "se", "ses", "si", "sip", "ske", "skoid", "sks", "skt", "sktid", "skv", "sp",
            "spr", "sr", "srt", "ss", "st", "suoid",
        ],
    ),
    // CloudFront, and Google's CDN.
    (&["Signature", "Key-Pair-Id"], &["Expires", "Policy"]),
    (&["URLPrefix", "Expires", "KeyName", "Signature"], &[]),
];

impl RemoteLocation {
    /// The name of the location in the cache. Two locations have the same name only if they have the same object and the same
    /// digest table. The name contains no secret: it has only the digest of a query.
    ///
    /// # Errors
    /// The endpoint of an object store is configured wrongly.
    pub(crate) fn identity(&self) -> Result<String, Fault> {
        let (place, table) = match self {
            Self::Web { url, table } => (of_url(url), table),
            Self::Object { service, bucket, key, table } => {
                let origin = Bucket::new(*service, bucket, key)?;
                (format!("{self} at {}", of_url(&origin.url()?)), table)
            }
            Self::Registry(_) => return Ok(self.to_string()),
        };
        Ok(match table {
            Some(digest) => format!("{place}#table=sha256:{digest}"),
            None => place,
        })
    }
}

/// A URL without credentials, with the digest of the part of its query that identifies the object.
fn of_url(url: &Url) -> String {
    let query = url.query().unwrap_or_default();
    let names: Vec<_> = parse(query.as_bytes()).map(|(name, _)| name).collect();
    let signed = |(marks, _): &&(&[&str], &[&str])| marks.iter().all(|mark| names.iter().any(|name| name == mark));
    let signatures: Vec<_> = SIGNATURES.iter().filter(signed).collect();
    let identifies = |part: &&str| {
        let name = parse(part.as_bytes()).next().map(|(name, _)| name).unwrap_or_default();
        let is_of = |(marks, others): &&(&[&str], &[&str])| marks.contains(&&*name) || others.contains(&&*name);
        !part.is_empty() && !signatures.iter().copied().any(|signature| is_of(&signature))
    };
    let rest = query.split('&').filter(identifies).collect::<Vec<_>>().join("&");
    let place = shown(url);
    if rest.is_empty() { place } else { format!("{place}?sha256:{}", Digest::of(rest.as_bytes())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_the_cache_distinguish_objects_but_not_signatures() {
        let table = |digit: char| format!("#table=sha256:{}", digit.to_string().repeat(64));
        let (a, b) = (table('a'), table('b'));
        let [a, b] = [a, b].map(|table| format!("https://h/a{table}"));
        for (one, other, is_same) in [
            ("https://h/a", "https://u:p@h/a", true),
            ("https://h/a", "https://h/a?", true),
            ("https://h/a", "http://h/a", false),
            ("https://h/a?file=a", "https://h/a?file=b", false),
            ("https://h/a?file=a", "https://h/a", false),
            ("https://h/a?file=a&X-Amz-Signature=1&X-Amz-Date=2", "https://h/a?X-Amz-Signature=3&file=a", true),
            ("https://h/a?X-Amz-Signature=1&X-Amz-Date=2", "https://h/a", true),
            ("https://h/a?versionId=1&X-Amz-Signature=1", "https://h/a?versionId=2&X-Amz-Signature=1", false),
            ("https://h/a?sv=1&sig=2&se=3&st=4", "https://h/a?sv=1&sig=5&se=6&st=4", true),
            ("https://h/a?st=4", "https://h/a?st=5", false),
            ("https://h/a?sig=4", "https://h/a?sig=5", false),
            (
                "https://h/a?Expires=1&Signature=2&Key-Pair-Id=3",
                "https://h/a?Expires=4&Signature=5&Key-Pair-Id=3",
                true,
            ),
            (&a, &b, false),
            (&a, "https://h/a", false),
            (&a, &a, true),
        ] {
            let [one_name, other_name] =
                [one, other].map(|url| url.parse::<RemoteLocation>().expect(url).identity().expect("a name"));
            assert_eq!(one_name == other_name, is_same, "{one} {other}: {one_name} {other_name}");
        }
    }

    #[test]
    fn names_in_the_cache_contain_no_secret() {
        let location: RemoteLocation = "https://user:secret@h/a?token=secret".parse().expect("a URL");
        let name = location.identity().expect("a name");
        assert!(name.starts_with("https://h/a?sha256:") && !name.contains("secret"), "{name}");
    }
}
