//! Hash trees compared with those of veritysetup.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    process::Command,
};

use floe_remote_cache::{
    ObjectKey, Trust, VerityOptions, VerityRoot, append_verity, parse_sidecar, sidecar_path, sidecar_text,
};
use floe_testkit::{
    Random,
    skip::{Need, ready},
};

use crate::scene::{Object, Scene, Server, bytes_of, open, read_all};

/// Numbers of blocks at which trees gain blocks and levels, and one with three levels of 4096 bytes.
const BLOCKS: [u64; 8] = [1, 2, 127, 128, 129, 257, 2000, 16_385];

fn veritysetup(arguments: &[&str]) -> (bool, String) {
    let output = Command::new("veritysetup").args(arguments).output().expect("veritysetup runs");
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn trees_are_those_of_veritysetup() {
    if !ready(&[Need::Peer("veritysetup")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    for (blocks, block_bytes, salt) in BLOCKS
        .into_iter()
        .flat_map(|blocks| [(blocks, 4096, vec![0; 32]), (blocks, 512, b"pepper".to_vec()), (blocks, 1024, Vec::new())])
        .filter(|(blocks, block_bytes, _)| *blocks < 10_000 || *block_bytes == 4096)
    {
        let (ours, theirs) = (path("ours"), path("theirs"));
        let image = Random::new(blocks).noise((blocks * u64::from(block_bytes)) as usize);
        fs::write(&ours, &image).expect("written");
        fs::write(&theirs, &image).expect("written");
        let salt_text: String = salt.iter().map(|byte| format!("{byte:02x}")).collect();
        let salt_text = if salt.is_empty() { "-".to_owned() } else { salt_text };
        let file = File::options().read(true).write(true).open(&ours).expect("it opens");
        let root = append_verity(&file, &VerityOptions { block_bytes, salt }).expect("a tree");
        assert_eq!(root.hash_offset, image.len() as u64);

        let offset = format!("--hash-offset={}", root.hash_offset);
        let blocks_text = format!("--data-blocks={blocks}");
        let size = format!("{block_bytes}");
        let their_path = theirs.to_str().expect("text");
        let (is_made, said) = veritysetup(&[
            "format",
            their_path,
            their_path,
            &offset,
            &blocks_text,
            "--salt",
            &salt_text,
            "--data-block-size",
            &size,
            "--hash-block-size",
            &size,
        ]);
        assert!(is_made, "{said}");
        assert!(said.contains(&root.root_hash.to_string()), "{blocks} blocks of {block_bytes}: {said}");
        let (mut our_bytes, their_bytes) = (bytes_of(&ours), bytes_of(&theirs));
        // The UUIDs differ, because veritysetup's is random.
        let uuid = image.len() + 16..image.len() + 32;
        our_bytes[uuid.clone()].copy_from_slice(&their_bytes[uuid]);
        assert!(our_bytes[..their_bytes.len()] == their_bytes, "{blocks} blocks of {block_bytes}");
        assert!(our_bytes[their_bytes.len()..].iter().all(|byte| *byte == 0));

        let our_path = ours.to_str().expect("text");
        let (is_right, said) = veritysetup(&["verify", our_path, our_path, &root.root_hash.to_string(), &offset]);
        assert!(is_right, "{said}");
        // A tree of veritysetup can be read.
        let key = ObjectKey { trust: Trust::Verity(root), len: their_bytes.len() as u64 };
        let object = Object { bytes: their_bytes.into(), key };
        let source = open(&Scene::new().cache(), &object, &Server::of(&object)).expect("it opens");
        assert!(read_all(&source).expect("it is read") == image);
    }
}

#[test]
fn images_are_padded_to_whole_blocks() {
    for (len, hash_offset) in [(1, 4096), (4096, 4096), (4097, 8192)] {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&vec![7; len]).expect("written");
        let root = append_verity(&file, &VerityOptions::default()).expect("a tree");
        assert_eq!(root.hash_offset, hash_offset);
        let mut padding = vec![1; (hash_offset - len as u64) as usize];
        file.read_exact_at(&mut padding, len as u64).expect("it is there");
        assert!(padding.iter().all(|byte| *byte == 0));
    }
    let empty = tempfile::tempfile().expect("a file");
    append_verity(&empty, &VerityOptions::default()).expect_err("nothing to cover");
    for options in [
        VerityOptions { block_bytes: 3000, ..VerityOptions::default() },
        VerityOptions { block_bytes: 256, ..VerityOptions::default() },
        VerityOptions { salt: vec![0; 257], ..VerityOptions::default() },
    ] {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[1; 8192]).expect("written");
        append_verity(&file, &options).expect_err("not a valid option");
        assert_eq!(file.metadata().expect("a length").len(), 8192, "untouched");
    }
}

#[test]
fn sidecars_are_those_of_containerd() {
    let hash = "93b7afe6e5a5bd2a4f7a9a1ae7f0ad5e4e2d0cb1a9ffa4bb37e5ac0a3a63f3b1";
    let root = VerityRoot { root_hash: hash.parse().expect("a digest"), hash_offset: 8192 };
    let written = format!("{{\n  \"roothash\": \"{hash}\",\n  \"hashoffset\": 8192\n}}");
    assert_eq!(sidecar_text(&root), written);
    for (text, expected) in [
        (&*written, Ok(root)),
        (&*format!("{{\"hashoffset\":8192,\"roothash\":\"sha256:{hash}\",\"later\":1}}"), Ok(root)),
        ("{}", Err("the .dmverity file is not a JSON object with roothash and hashoffset")),
        ("{\"roothash\":\"77\",\"hashoffset\":1}", Err("the root hash in the .dmverity file is not a SHA-256 digest")),
        (
            &*format!("{{\"roothash\":\"{hash}\",\"hashoffset\":-1}}"),
            Err("the .dmverity file is not a JSON object with roothash and hashoffset"),
        ),
    ] {
        assert_eq!(parse_sidecar(text).map_err(|bad| bad.rule), expected, "{text}");
    }
    assert_eq!(sidecar_path("/a/layer.erofs".as_ref()), std::path::Path::new("/a/layer.erofs.dmverity"));
}
