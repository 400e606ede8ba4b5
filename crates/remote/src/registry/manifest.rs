//! Selects manifests from indexes and layers from manifests.

use floe_remote_cache::{Digest, DigestTable, HashTree, OBJECT_BYTES_MAX, TreeRoot, VerityRoot};

use crate::{
    LayerChoice,
    fault::Fault,
    launch_bundle::{BundleText, LaunchBundle},
    registry::document::{Annotations, Descriptor, Index, Manifest, Platform, parse_digest},
};

/// The platform feature of images with EROFS layers.
pub const EROFS_FEATURE: &str = "erofs";

/// The media type of layers that are EROFS images, as in containerd.
pub const EROFS_LAYER: &str = "application/vnd.erofs.layer.v1";
/// The media type of layers that are SquashFS images.
pub(crate) const SQUASHFS_LAYER: &str = "application/vnd.floe.squashfs.layer.v1";

/// The artifact type of a manifest with converted layers that refers to the original manifest.
pub const TWIN_ARTIFACT: &str = "application/vnd.floe.erofs.image.v1";

/// The layer annotation with the digest of its digest table, which is a blob of the same repository.
pub(crate) const TABLE_ANNOTATION: &str = "dev.floe.digest-table";

/// The layer annotation with the format of an image. containerd passes annotations with this prefix to snapshotters.
pub const FORMAT_ANNOTATION: &str = "containerd.io/snapshot/dev.floe.format";

/// The annotation of a converted layer with the digest of the original one.
pub const SOURCE_ANNOTATION: &str = "dev.floe.convert.source";

/// The layer annotation that makes Podman and CRI-O look for the layer in an additional layer store, under its value. It is that
/// of the table of contents of eStargz; for layers of Floe, it is the root that their bytes are verified with.
pub const TOC_ANNOTATION: &str = "containerd.io/snapshot/stargz/toc.digest";

/// The layer annotations with the digest of its hash tree, which is a blob of the same repository, and with the root of the tree.
pub(crate) const TREE_ANNOTATION: &str = "dev.floe.hash-tree";
pub(crate) const TREE_ROOT_ANNOTATION: &str = "dev.floe.hash-tree.root";

/// The annotations of a layer that describe its launch bundle: [`LaunchBundle`].
const BUNDLE_ANNOTATION: &str = "dev.floe.launch-bundle";
const BUNDLE_RUNS_ANNOTATION: &str = "dev.floe.launch-bundle.runs";
const BUNDLE_TABLE_ANNOTATION: &str = "dev.floe.launch-bundle.table";

/// The annotations of an EROFS layer with a dm-verity hash tree behind the image.
const VERITY_ROOT_ANNOTATIONS: [&str; 2] = ["org.erofs.dmverity.root_digest", "org.erofs.dmverity.root-digest"];
const VERITY_OFFSET_ANNOTATIONS: [&str; 2] = ["org.erofs.dmverity.hash_offset", "org.erofs.dmverity.hash-offset"];

/// The maximum number of layers that an error lists.
const LISTED_LAYERS_MAX: usize = 16;

/// A layer with its root of trust.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layer {
    media_type: String,
    pub(crate) digest: Digest,
    pub(crate) len: u64,
    pub(crate) verity: Option<VerityRoot>,
    /// The root of its hash tree, and the digest of the blob with the tree.
    pub(crate) tree: Option<(TreeRoot, Digest)>,
    /// The digest of its digest table.
    pub(crate) table: Option<Digest>,
    /// The blob with the blocks that a launch reads.
    pub(crate) bundle: Option<LaunchBundle>,
}

/// Selects the manifest of an index for this machine. Manifests with EROFS layers take precedence.
///
/// # Errors
/// No manifest fits.
pub(crate) fn choose_manifest<'a>(index: &'a Index, machine: &str) -> Result<&'a Descriptor, Fault> {
    let fits = |platform: &Platform| platform.os == "linux" && platform.architecture == machine;
    let rank = |descriptor: &Descriptor| match &descriptor.platform {
        Some(platform) if fits(platform) => {
            let is_erofs = platform.os_features.iter().any(|feature| feature == EROFS_FEATURE);
            Some(if is_erofs { 0 } else { 1 })
        }
        Some(_) => None,
        None => Some(2),
    };
    let ranked = index.manifests.iter().filter_map(|descriptor| rank(descriptor).map(|rank| (rank, descriptor)));
    let best = ranked.min_by_key(|(rank, _)| *rank).map(|(_, descriptor)| descriptor);
    best.ok_or_else(|| {
        let platforms = index.manifests.iter().filter_map(|descriptor| descriptor.platform.as_ref());
        let platforms = platforms.take(LISTED_LAYERS_MAX);
        let platforms = platforms
            .map(|platform| format!("{}/{}", platform.os.escape_debug(), platform.architecture.escape_debug()));
        let platforms = platforms.collect::<Vec<_>>().join(", ");
        Fault::refused(format!(
            "it has no image for linux/{machine}, only for {platforms}; select one by its digest, @sha256:…"
        ))
    })
}

/// Selects the layer of `choice`; without a choice, the only layer that is an image.
///
/// # Errors
/// There is no such layer, there are several, or it cannot be read in place.
pub(crate) fn choose_layer(manifest: &Manifest, choice: Option<&LayerChoice>) -> Result<Layer, Fault> {
    let layers = &manifest.layers;
    let digests = layers.iter().map(Descriptor::digest).collect::<Result<Vec<_>, _>>()?;
    let listed = || {
        let shown = layers.iter().enumerate().take(LISTED_LAYERS_MAX);
        let shown = shown.map(|(index, layer)| format!("#{index} {}", layer.media_type.escape_debug()));
        shown.collect::<Vec<_>>().join(", ")
    };
    let index = match choice {
        Some(LayerChoice::Index(index)) if *index < layers.len() => *index,
        Some(LayerChoice::Digest(digest)) => {
            let index = digests.iter().position(|found| found == digest);
            index.ok_or_else(|| Fault::refused(format!("it has no layer sha256:{digest}; it has {}", listed())))?
        }
        Some(LayerChoice::Index(index)) => {
            return Err(Fault::refused(format!("it has no layer #{index}; it has {}", listed())));
        }
        None => match only(layers, is_image).or_else(|| only(layers, is_unknown)) {
            Some(index) => index,
            None if layers.is_empty() => return Err(Fault::refused("it has no layers")),
            None if !layers.iter().any(is_image) => {
                let advice = "none of its layers is an EROFS or SquashFS image";
                return Err(Fault::refused(format!("{advice}; they are {}", listed())));
            }
            None => return Err(Fault::refused(format!("it has several layers: choose one of {}", listed()))),
        },
    };
    let (Some(layer), Some(digest)) = (layers.get(index), digests.get(index)) else {
        return Err(Fault::refused("it has no such layer"));
    };
    Layer::new(layer, *digest)
}

impl Layer {
    pub(super) fn new(layer: &Descriptor, digest: Digest) -> Result<Self, Fault> {
        let media_type = layer.media_type.clone();
        if layer.size > OBJECT_BYTES_MAX {
            return Err(Fault::refused(format!("the manifest announces {} bytes", layer.size)));
        }
        let annotations = &layer.annotations;
        let verity = verity(annotations)?.filter(|_| compression(&media_type).is_none());
        if verity.is_some_and(|root| root.hash_offset > layer.size) {
            return Err(Fault::refused("the manifest places the hash tree past the end of the layer"));
        }
        let table = annotations.get(TABLE_ANNOTATION).map(|text| parse_digest(text)).transpose()?;
        let tree = tree(annotations, layer.size)?.filter(|_| compression(&media_type).is_none());
        let bundle = bundle(annotations, layer.size);
        Ok(Self { digest, len: layer.size, verity, tree, table, bundle, media_type })
    }

    /// The root that bytes of the layer are verified with.
    pub(super) fn root_hash(&self) -> Option<&Digest> {
        let verity = self.verity.as_ref().map(|root| &root.root_hash);
        verity.or(self.tree.as_ref().map(|(root, _)| &root.root_hash)).or(self.table.as_ref())
    }

    /// The compression of the layer as a whole, if any: `zstd` or `gzip`.
    pub(crate) fn compression(&self) -> Option<&'static str> {
        compression(&self.media_type)
    }

    /// Why the layer can only be used as a whole: it is an archive, or compressed as a whole.
    pub(crate) fn must_be_pulled(&self) -> Option<&'static str> {
        if self.media_type.contains("tar") {
            Some("the layer is a tar archive: pull it and give it to 'floe mkfs'")
        } else if self.compression().is_some() {
            Some("the layer is compressed as a whole: get it with 'floe pull' and use the file")
        } else {
            None
        }
    }
}

/// The compression in a media type.
fn compression(media_type: &str) -> Option<&'static str> {
    let suffixes = [("+zstd", "zstd"), ("+gzip", "gzip"), (".gzip", "gzip")];
    suffixes.into_iter().find_map(|(suffix, name)| media_type.ends_with(suffix).then_some(name))
}

/// The index of the only layer that satisfies `is_so`.
fn only(layers: &[Descriptor], is_so: impl Fn(&Descriptor) -> bool) -> Option<usize> {
    let mut places = layers.iter().enumerate().filter(|(_, layer)| is_so(layer)).map(|(place, _)| place);
    let place = places.next()?;
    places.next().is_none().then_some(place)
}

fn is_image(layer: &Descriptor) -> bool {
    let media_type = &layer.media_type;
    ["erofs", "squashfs", ".sif"].iter().any(|word| media_type.contains(word))
}

/// Whether the media type is neither an image's nor an archive's: an artifact that could be either.
fn is_unknown(layer: &Descriptor) -> bool {
    let media_type = &layer.media_type;
    !is_image(layer)
        && !media_type.contains("tar")
        && ![DigestTable::MEDIA_TYPE, HashTree::MEDIA_TYPE].contains(&&**media_type)
}

/// Adds the description of a launch bundle.
pub(crate) fn annotate(annotations: &mut Annotations, bundle: &LaunchBundle) {
    let BundleText { digest, runs, table } = bundle.text();
    let described = [(BUNDLE_ANNOTATION, digest), (BUNDLE_RUNS_ANNOTATION, runs), (BUNDLE_TABLE_ANNOTATION, table)];
    annotations.extend(described.map(|(name, value)| (name.to_owned(), value)));
}

/// The launch bundle of an image of `image_len` bytes.
fn bundle(annotations: &Annotations, image_len: u64) -> Option<LaunchBundle> {
    let value = |name: &str| annotations.get(name).cloned();
    let [digest, runs, table] = [BUNDLE_ANNOTATION, BUNDLE_RUNS_ANNOTATION, BUNDLE_TABLE_ANNOTATION].map(value);
    LaunchBundle::parse(&BundleText { digest: digest?, runs: runs?, table: table? }, image_len)
}

/// The hash tree beside a layer of `data_len` bytes.
fn tree(annotations: &Annotations, data_len: u64) -> Result<Option<(TreeRoot, Digest)>, Fault> {
    let digest_in = |name: &str| annotations.get(name).map(|text| parse_digest(text)).transpose();
    let pair = digest_in(TREE_ROOT_ANNOTATION)?.zip(digest_in(TREE_ANNOTATION)?);
    Ok(pair.map(|(root_hash, blob)| (TreeRoot { root_hash, data_len }, blob)))
}

fn verity(annotations: &Annotations) -> Result<Option<VerityRoot>, Fault> {
    let one_of = |names: [&str; 2]| names.iter().find_map(|name| annotations.get(*name));
    let (Some(root), Some(offset)) = (one_of(VERITY_ROOT_ANNOTATIONS), one_of(VERITY_OFFSET_ANNOTATIONS)) else {
        return Ok(None);
    };
    let hash_offset = offset
        .parse()
        .map_err(|_| Fault::refused(format!("'{}' is not the offset of a hash tree", offset.escape_debug())))?;
    Ok(Some(VerityRoot { root_hash: parse_digest(root)?, hash_offset }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::document::Document;

    fn hex(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    fn manifest(layers: &[(&str, &str)]) -> Manifest {
        let layer = |(place, (media_type, annotations)): (usize, &(&str, &str))| {
            let digest = hex(char::from_digit(place as u32, 16).expect("few layers"));
            format!(r#"{{"mediaType":"{media_type}","digest":"{digest}","size":5000,"annotations":{{{annotations}}}}}"#)
        };
        let layers = layers.iter().enumerate().map(layer).collect::<Vec<_>>().join(",");
        let config = format!(r#"{{"mediaType":"application/vnd.oci.empty.v1+json","digest":"{}","size":2}}"#, hex('f'));
        let text = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{layers}]}}"#);
        match Document::parse(text.as_bytes()).expect("a manifest") {
            Document::Manifest(manifest) => manifest,
            Document::Index(_) => panic!("an index"),
        }
    }

    #[test]
    fn layers_are_chosen() {
        let tar = ("application/vnd.oci.image.layer.v1.tar+gzip", "");
        let (erofs, zstd) = ((EROFS_LAYER, ""), ("application/vnd.erofs.layer.v1+zstd", ""));
        let sif = ("application/vnd.sylabs.sif.layer.v1.sif", "");
        let other = ("application/octet-stream", "");
        let index = LayerChoice::Index;
        let digest = |digit| LayerChoice::Digest(hex(digit).parse().expect("a digest"));
        for (layers, choice, expected) in [
            (&[erofs][..], None, Ok(0)),
            (&[tar, erofs], None, Ok(1)),
            (&[sif], None, Ok(0)),
            (&[other], None, Ok(0)),
            (&[other, erofs], None, Ok(1)),
            (&[zstd], None, Ok(0)),
            (&[erofs, erofs], None, Err("several layers: choose one of #0 application/vnd.erofs")),
            (&[erofs, erofs], Some(index(1)), Ok(1)),
            (&[erofs, erofs], Some(digest('1')), Ok(1)),
            (&[erofs], Some(digest('5')), Err("it has no layer sha256:555")),
            (&[erofs], Some(index(1)), Err("it has no layer #1; it has #0 ")),
            (&[tar], None, Err("none of its layers")),
            (&[other, other], None, Err("none of its layers")),
            (&[], None, Err("it has no layers")),
        ] {
            let chosen = choose_layer(&manifest(layers), choice.as_ref());
            match (chosen, expected) {
                (Ok(layer), Ok(place)) => {
                    assert_eq!(layer.digest.to_string(), place.to_string().repeat(64), "{layers:?} {choice:?}");
                }
                (Err(fault), Err(text)) => assert!(fault.message.contains(text), "{layers:?}: {}", fault.message),
                (chosen, expected) => panic!("{layers:?} {choice:?}: {chosen:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn layers_that_cannot_be_read_in_place_must_be_pulled() {
        for (media_type, expected) in [
            (EROFS_LAYER, false),
            ("application/vnd.erofs.layer.v1+zstd", true),
            ("application/vnd.oci.image.layer.v1.tar", true),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", true),
        ] {
            let layer = choose_layer(&manifest(&[(media_type, "")]), Some(&LayerChoice::Index(0))).expect("a layer");
            assert_eq!(layer.must_be_pulled().is_some(), expected, "{media_type}");
        }
    }

    #[test]
    fn annotations_contain_the_roots_of_trust() {
        let root = |digit| hex(digit).parse::<Digest>().expect("a digest");
        let verity = |offset: &str| {
            format!(r#""org.erofs.dmverity.root_digest":"{}","org.erofs.dmverity.hash_offset":"{offset}""#, hex('a'))
        };
        let table = format!(r#""{TABLE_ANNOTATION}":"{}""#, hex('b'));
        let of = |annotations: &str| choose_layer(&manifest(&[(EROFS_LAYER, annotations)]), None);
        let layer = of(&verity("4096")).expect("sound");
        assert_eq!(layer.verity, Some(VerityRoot { root_hash: root('a'), hash_offset: 4096 }));
        assert_eq!(of(&table).expect("sound").table, Some(root('b')));
        let tree = format!(r#""{TREE_ANNOTATION}":"{}","{TREE_ROOT_ANNOTATION}":"{}""#, hex('c'), hex('d'));
        let expected = (TreeRoot { root_hash: root('d'), data_len: 5000 }, root('c'));
        assert_eq!(of(&tree).expect("sound").tree, Some(expected));
        assert_eq!(of(&format!(r#""{TREE_ANNOTATION}":"{}""#, hex('c'))).expect("sound").tree, None, "without a root");
        for (annotations, expected) in [
            (verity("5001"), "past the end"),
            (verity("-1"), "is not the offset"),
            (table.replace("sha256", "sha512"), "is not a SHA-256"),
            (tree.replace("sha256", "sha512"), "is not a SHA-256"),
        ] {
            let error = of(&annotations).expect_err(&annotations).message;
            assert!(error.contains(expected), "{annotations}: {error}");
        }
    }

    #[test]
    fn indexes_are_chosen_from_by_platform() {
        let entry = |digit: char, platform: &str| {
            let media_type = "application/vnd.oci.image.manifest.v1+json";
            format!(r#"{{"mediaType":"{media_type}","digest":"{}","size":7{platform}}}"#, hex(digit))
        };
        let on =
            |arch: &str, features: &str| format!(r#","platform":{{"os":"linux","architecture":"{arch}"{features}}}"#);
        let erofs = r#","os.features":["erofs"]"#;
        let unknown = r#","platform":{"os":"unknown","architecture":"unknown"}"#.to_owned();
        for (entries, expected) in [
            (vec![entry('1', &on("arm64", "")), entry('2', &on("amd64", ""))], Some('2')),
            (vec![entry('1', &on("amd64", "")), entry('2', &on("amd64", erofs))], Some('2')),
            (vec![entry('1', &on("arm64", erofs)), entry('2', &unknown)], None),
            (vec![entry('1', "")], Some('1')),
            (Vec::new(), None),
        ] {
            let text = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, entries.join(","));
            let Document::Index(index) = Document::parse(text.as_bytes()).expect("an index") else { panic!("{text}") };
            let chosen = choose_manifest(&index, "amd64").and_then(Descriptor::digest).ok();
            let chosen = chosen.map(|digest| digest.to_string());
            assert_eq!(chosen, expected.map(|digit| digit.to_string().repeat(64)), "{text}");
        }
    }

    #[test]
    fn errors_contain_no_control_characters_of_manifests() {
        let escapes = "\\u001b[31m\\nfloe: done";
        let layer = format!("text/{escapes}");
        let offset =
            format!(r#""org.erofs.dmverity.root_digest":"{}","org.erofs.dmverity.hash_offset":"{escapes}""#, hex('a'));
        let of =
            |layers: &[(&str, &str)], choice| choose_layer(&manifest(layers), choice).expect_err("refused").message;
        let entry = format!(
            r#"{{"mediaType":"{}","digest":"{}","size":7,"platform":{{"os":"{escapes}","architecture":"{escapes}"}}}}"#,
            crate::registry::document::MANIFEST,
            hex('1')
        );
        let index = format!(r#"{{"schemaVersion":2,"manifests":[{entry}]}}"#);
        let Document::Index(index) = Document::parse(index.as_bytes()).expect("an index") else { panic!() };
        for message in [
            of(&[(&layer, ""), (&layer, "")], None),
            of(&[(&layer, "")], Some(&LayerChoice::Index(7))),
            of(&[(EROFS_LAYER, &offset)], None),
            choose_manifest(&index, "amd64").expect_err("refused").message,
        ] {
            assert!(message.contains("[31m") && !message.contains(char::is_control), "{message:?}");
        }
    }

    #[test]
    fn invalid_manifests_are_refused() {
        for text in
            ["", "{", "[]", "{}", r#"{"mediaType":"x"}"#, r#"{"manifests":1}"#, r#"{"schemaVersion":2,"layers":[]}"#]
        {
            assert!(Document::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
