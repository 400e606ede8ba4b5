//! The content of a registry.

use std::collections::HashMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use floe_remote_cache::{Digest, DigestTable, HashTreeBuilder};

use super::{Answer, Asked};

pub(crate) const EROFS_LAYER: &str = "application/vnd.erofs.layer.v1";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// The content of a registry: blobs by digest, manifests by digest and by tag.
#[derive(Default, Clone)]
pub(crate) struct Content {
    pub(crate) blobs: HashMap<String, Vec<u8>>,
    pub(crate) manifests: HashMap<String, (&'static str, Vec<u8>)>,
}

impl Content {
    pub(crate) fn blob(&mut self, bytes: &[u8]) -> String {
        let digest = format!("sha256:{}", Digest::of(bytes));
        self.blobs.insert(digest.clone(), bytes.to_vec());
        digest
    }

    pub(crate) fn manifest(&mut self, tag: &str, media_type: &'static str, text: &str) -> String {
        let digest = format!("sha256:{}", Digest::of(text.as_bytes()));
        for name in [tag, &digest] {
            self.manifests.insert(name.to_owned(), (media_type, text.as_bytes().to_vec()));
        }
        digest
    }

    /// Adds an image of one layer under the tag, in an index. `annotations` belong to the layer.
    pub(crate) fn image(&mut self, tag: &str, layer: &[u8], annotations: &str) -> String {
        let (config, len) = (self.blob(b"{}"), layer.len());
        let digest = self.blob(layer);
        let text = format!(
            r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{{"mediaType":"x","digest":"{config}","size":2}},
            "layers":[{{"mediaType":"{EROFS_LAYER}","digest":"{digest}","size":{len},"annotations":{{{annotations}}}}}]}}"#
        );
        let manifest = self.manifest(&format!("{tag}-manifest"), MANIFEST, &text);
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let platform = format!(r#"{{"os":"linux","architecture":"{arch}","os.features":["erofs"]}}"#);
        let text = format!(
            r#"{{"schemaVersion":2,"mediaType":"{INDEX}","manifests":[{{"mediaType":"{MANIFEST}","digest":"{manifest}",
            "size":{},"platform":{platform}}}]}}"#,
            text.len()
        );
        self.manifest(tag, INDEX, &text)
    }

    /// Adds an image whose manifest refers to its table of digests.
    pub(crate) fn image_with_table(&mut self, tag: &str, layer: &[u8]) -> String {
        let table = DigestTable::of(&mut &*layer).expect("read");
        let digest = self.blob(&table.to_bytes());
        self.image(tag, layer, &format!(r#""dev.floe.digest-table":"{digest}""#))
    }

    /// Adds the hash tree of a layer of more than one piece. Returns its digest and the annotations of the layer.
    pub(crate) fn tree(&mut self, layer: &[u8]) -> (String, String) {
        let mut builder = HashTreeBuilder::default();
        builder.update(layer);
        let tree = builder.finish().expect("several pieces");
        let (digest, name) = (self.blob(tree.bytes()), "dev.floe.hash-tree");
        let annotations = format!(r#""{name}":"{digest}","{name}.root":"sha256:{}""#, tree.root().root_hash);
        (digest, annotations)
    }

    /// Adds the bundle of the blocks that `runs` lists, as pairs of the first block and the number of blocks. Returns its digest
    /// and the annotations of the layer.
    pub(crate) fn bundle(&mut self, layer: &[u8], runs: &[(usize, usize)]) -> (String, String) {
        let of_run = |(first, count): &(usize, usize)| &layer[first * 4096..((first + count) * 4096).min(layer.len())];
        let bundle = runs.iter().map(of_run).collect::<Vec<_>>().concat();
        let table = BASE64_STANDARD.encode(DigestTable::of(&mut &*bundle).expect("read").to_bytes());
        let runs: Vec<_> = runs.iter().map(|(first, count)| format!("{first}+{count}")).collect();
        let (digest, runs) = (self.blob(&bundle), runs.join(","));
        let name = "dev.floe.launch-bundle";
        let annotations = format!(r#""{name}":"{digest}","{name}.runs":"{runs}","{name}.table":"{table}""#);
        (digest, annotations)
    }

    pub(crate) fn answer(&self, asked: &Asked) -> Answer {
        let Some(path) = asked.path.strip_prefix("/v2/team/image/") else { return Answer::new(404, &[], "") };
        match path.split_once('/') {
            Some(("manifests", name)) => match self.manifests.get(name) {
                Some((media_type, bytes)) => Answer::new(200, &[("content-type", media_type)], bytes.as_slice()),
                None => Answer::new(404, &[], ""),
            },
            Some(("blobs", digest)) => match self.blobs.get(digest) {
                Some(bytes) => Answer::of_object(asked, bytes, "\"blob\""),
                None => Answer::new(404, &[], ""),
            },
            _ => Answer::new(404, &[], ""),
        }
    }
}
