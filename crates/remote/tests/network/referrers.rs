//! Lists of referrers: from the API of registries, from the tag in its place, and from hostile registries.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
};

use floe_remote::{Network, Outage, RegistryImages, RemoteLocation, RemoteOptions, TWIN_ARTIFACT};
use floe_remote_cache::Digest;
use floe_testkit::check_rows;

use crate::support::{Answer, Asked, Server, content::INDEX};

const API: &str = "/v2/team/image/referrers/sha256:";
const TAG: &str = "/v2/team/image/manifests/sha256-";

fn images(server: &Server) -> RegistryImages {
    let url = format!("oci://{}/team/image:v1", server.address);
    let Ok(RemoteLocation::Registry(reference)) = url.parse() else { panic!("{url}") };
    let network = Network::new(RemoteOptions { outage: Outage::Eio, ..RemoteOptions::default() }).expect("a network");
    network.images(&reference).expect("a repository")
}

fn digest(digit: char) -> String {
    format!("sha256:{}", digit.to_string().repeat(64))
}

fn entry(artifact_type: &str, digest: &str) -> String {
    format!(r#"{{"mediaType":"m","digest":"{digest}","size":1,"artifactType":"{artifact_type}"}}"#)
}

fn list(entries: &[String]) -> String {
    format!(r#"{{"schemaVersion":2,"mediaType":"{INDEX}","manifests":[{}]}}"#, entries.join(","))
}

/// The answers of a registry to the API and to the tag: a status and a body.
type Answers = [(u16, String); 2];

/// The referrers that are found, or the beginning of the error.
fn found(answers: &Answers) -> (Result<Vec<String>, String>, usize) {
    let (answers, paths) = (answers.clone(), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&paths);
    let server = Server::start(move |asked: &Asked| {
        noted.lock().expect("no panic").push(asked.path.clone());
        let place = usize::from(asked.path.starts_with(TAG));
        Answer::new(answers[place].0, &[("content-type", INDEX)], answers[place].1.as_bytes())
    });
    let subject: Digest = "a".repeat(64).parse().expect("a digest");
    let found = images(&server).referrers(&subject, TWIN_ARTIFACT);
    let found = found.map(|digests| digests.iter().map(|digest| format!("sha256:{digest}")).collect());
    let paths = paths.lock().expect("no panic");
    let api = format!("{API}{subject}?artifactType=application%2Fvnd.floe.erofs.image.v1");
    assert!(paths.contains(&api) && paths.contains(&format!("{TAG}{subject}")), "{paths:?}");
    (found.map_err(|error: io::Error| error.to_string()), paths.len())
}

#[test]
fn referrers_are_listed_by_the_api_or_by_a_tag() {
    let (none, other) = ((404, String::new()), "application/vnd.example.signature");
    let one = (200, list(&[entry(other, &digest('1')), entry(TWIN_ARTIFACT, &digest('2'))]));
    let many: Vec<String> = (0..40).map(|number| entry(TWIN_ARTIFACT, &format!("sha256:{number:064}"))).collect();
    let first: Vec<String> = (0..8).map(|number| format!("sha256:{number:064}")).collect();
    let wrong = ["sha256:1", "sha512:1", "", "../../x"]
        .map(|wrong| entry(TWIN_ARTIFACT, wrong))
        .into_iter()
        .collect::<Vec<_>>();
    let manifest = r#"{"schemaVersion":2,"config":{"mediaType":"x","digest":"x","size":2},"layers":[]}"#;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let long = list(&vec![entry(TWIN_ARTIFACT, &digest('2')); 40_000]);
    type Expected = Result<Vec<String>, &'static str>;
    let rows: Vec<(&str, Answers, Expected)> = vec![
        ("the API", [one.clone(), none.clone()], Ok(vec![digest('2')])),
        ("the tag", [none.clone(), one.clone()], Ok(vec![digest('2')])),
        ("the tag, beside an API that is refused", [(405, String::new()), one.clone()], Ok(vec![digest('2')])),
        ("the API before the tag", [(200, list(&[])), one.clone()], Ok(Vec::new())),
        ("neither", [none.clone(), none.clone()], Ok(Vec::new())),
        ("an unknown route", [(405, String::new()), none.clone()], Ok(Vec::new())),
        ("others only", [(200, list(&[entry(other, &digest('1'))])), none.clone()], Ok(Vec::new())),
        ("many", [(200, list(&many)), none.clone()], Ok(first)),
        ("wrong digests", [(200, list(&wrong)), none.clone()], Ok(Vec::new())),
        ("a manifest", [none.clone(), (200, manifest.to_owned())], Ok(Vec::new())),
        ("no JSON", [(200, "<html>".to_owned()), none.clone()], Err("not a manifest")),
        ("nested too deeply", [(200, deep), none.clone()], Err("not a manifest")),
        // As if there were no API.
        ("too long", [(200, long.clone()), none.clone()], Ok(Vec::new())),
        ("too long a tag", [none.clone(), (200, long)], Err("more than 4194304 bytes")),
        ("a failure", [(500, String::new()), none], Err("500")),
    ];
    check_rows(
        &rows,
        |row| row.0.to_owned(),
        |(_, answers, expected)| {
            let (found, requests) = found(answers);
            let is_right = match (&found, expected) {
                (Ok(found), Ok(expected)) => found == expected,
                (Err(error), Err(expected)) => error.contains(expected),
                _ => false,
            };
            // No request is repeated.
            let asked = (requests != 2).then(|| format!("{requests} requests"));
            (!is_right).then(|| format!("{found:?}")).into_iter().chain(asked).collect()
        },
    );
}

#[test]
fn referrers_are_added_to_the_tag_where_there_is_no_api() {
    for has_api in [false, true] {
        let stored: Arc<Mutex<HashMap<String, Vec<u8>>>> = Arc::default();
        let kept = Arc::clone(&stored);
        let server = Server::start(move |asked: &Asked| {
            let mut kept = kept.lock().expect("no panic");
            match asked.method.as_str() {
                "PUT" => {
                    kept.insert(asked.path.clone(), asked.body.clone());
                    let headers: &[(&str, &str)] = if has_api { &[("oci-subject", "any")] } else { &[] };
                    Answer::new(201, headers, "")
                }
                _ => match kept.get(&asked.path) {
                    Some(bytes) => Answer::new(200, &[], bytes.as_slice()),
                    None => Answer::new(404, &[], ""),
                },
            }
        });
        let images = images(&server);
        let subject = Digest::of(b"subject");
        let mut expected: Vec<Digest> = [&b"{\"one\":1}"[..], b"{\"two\":2}", b"{\"one\":1}"]
            .iter()
            .map(|bytes| {
                images.push_referrer(&subject, TWIN_ARTIFACT, bytes).expect("pushed");
                Digest::of(bytes)
            })
            .collect();
        images.push_referrer(&subject, "application/vnd.example.other", b"{\"three\":3}").expect("pushed");
        expected.sort_unstable();
        expected.dedup();
        let has_tag = stored.lock().expect("no panic").contains_key(&format!("{TAG}{subject}"));
        assert_eq!(has_tag, !has_api);
        let expected = if has_api { Vec::new() } else { expected };
        assert_eq!(images.referrers(&subject, TWIN_ARTIFACT).expect("listed"), expected, "{has_api}");
    }
}
