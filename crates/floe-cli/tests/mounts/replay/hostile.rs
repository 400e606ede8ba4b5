//! Profiles with garbage or absurd contents.

use std::{fs, path::Path};

use floe_testkit::{
    check_rows,
    skip::{self, Need},
};

use super::launched::{profile_option, unmount, wait_for_state};
use crate::support::{
    self,
    front::Scene,
    program::{Place, Serving, floe, run, told},
};

#[test]
fn hostile_profiles_are_one_error_or_do_nothing() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::many(20, 5000);
    let profile = scene.folder.path().join("profile");
    // The length suggests 100 million entries and more.
    let endless = scene.folder.path().join("endless");
    fs::write(&endless, "# floe profile 1\n").expect("ours");
    fs::File::options().write(true).open(&endless).expect("ours").set_len(1 << 30).expect("sparse");
    let many = format!("# floe profile 1\n{}", "0 1 /a\n".repeat(300_000));
    let refused: [(&str, &str); 9] = [
        ("", "the first line"),
        ("\x7fELF garbage", "the first line"),
        ("# floe profile 9\n", "the first line"),
        ("# floe profile 1\n0 50", "line 2"),
        ("# floe profile 1\nname /0/0\n", "line 2"),
        ("# floe profile 2\nname /0/../../etc/passwd\n", "line 2"),
        ("# floe profile 2\nname //0\n", "line 2"),
        ("# floe profile 1\n18446744073709551615 2 /0/0\n", "line 2"),
        (&many, "more than 262144 steps"),
    ];
    check_rows(
        &refused,
        |row| row.0.chars().take(60).collect(),
        |(text, words)| {
            let profile = tempfile::Builder::new().prefix("profile").tempfile().expect("a file");
            fs::write(profile.path(), text).expect("ours");
            refusal(&scene.image, profile.path(), words)
        },
    );
    assert_eq!(refusal(&scene.image, &endless, "at most 16 MiB"), Vec::<String>::new());
    assert_eq!(refusal(&scene.image, &scene.folder.path().join("none"), "No such file"), Vec::<String>::new());

    let long_name = "a".repeat(300);
    let long_path = "/a".repeat(4000);
    let harmless = [
        "0 18446744073709551614 /0/0".to_owned(),
        "9223372036854775807 1 /0/0".to_owned(),
        "0 0 /0/0".to_owned(),
        "0 5000 /0".to_owned(),
        "0 5000 /".to_owned(),
        "list /0/0".to_owned(),
        "link /0/0".to_owned(),
        format!("name /{long_name}"),
        format!("missing {long_path}"),
        "missing /0/0".to_owned(),
        "name /0/0/0".to_owned(),
        "0 5000 /not there".to_owned(),
    ];
    let repeated: String = (0..1000).flat_map(|_| harmless.iter().flat_map(|line| [line.as_str(), "\n"])).collect();
    fs::write(&profile, format!("# floe profile 2\n{repeated}0 5000 /1/1\n")).expect("ours");
    let mut serving = Serving::new(&scene.image, profile_option(&profile));
    fs::read(serving.place.file("0/0")).expect("read");
    let report = wait_for_state(&serving.place, "replayed");
    assert!(report["skipped_steps"].as_u64() >= Some(1000), "{report}");
    assert_eq!(scene.wrong(&serving.place.path), Vec::<String>::new());
    unmount(&mut serving);

    // A broken profile in an image is ignored.
    fs::write(&profile, "# floe profile 1\n0 5000 /0/0\n").expect("ours");
    let (profiled, tree) = (scene.folder.path().join("profiled"), scene.folder.path().join("tree"));
    let made = run(floe().arg("mkfs").arg(&profiled).arg(&tree).arg("--profile").arg(&profile));
    assert!(made.status.success(), "{made:?}");
    let bytes = fs::read(&profiled).expect("read");
    let at = bytes.windows(8).rposition(|bytes| bytes == b"FloeProf").expect("it has one");
    for place in [at, at + 8, at + 12, at + 20] {
        let mut broken = bytes.clone();
        broken[place] ^= 0x5a;
        fs::write(&profiled, broken).expect("ours");
        let mut serving = Serving::new(&profiled, ["-o", "profile=image"]);
        let report = wait_for_state(&serving.place, "none");
        assert_eq!(report["reason"], "the image has no profile", "byte {place}");
        assert_eq!(scene.wrong(&serving.place.path), Vec::<String>::new());
        unmount(&mut serving);
    }
}

/// The faults in the refusal of a mount with this profile.
fn refusal(image: &Path, profile: &Path, words: &str) -> Vec<String> {
    let place = Place::new();
    let output = run(floe().arg("mount").arg(image).arg(&place.path).args(profile_option(profile)));
    let (code, errors) = told(&output);
    let is_one_line = errors.lines().count() == 1 && errors.contains(words);
    if code == Some(1) && is_one_line && !place.is_mounted() { Vec::new() } else { vec![format!("{code:?}: {errors}")] }
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let place = Place::new();
    for (options, words) in [("profile=learn,subdir=guide", "omit subdir="), ("profile=", "name a file")] {
        let output = run(floe().arg("mount").arg(support::program::demo()).arg(&place.path).args(["-o", options]));
        let (code, errors) = told(&output);
        assert!(code == Some(2) && errors.contains(words), "{options}: {code:?} {errors}");
    }
}
