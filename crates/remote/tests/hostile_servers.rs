//! Servers with wrong answers of any kind: images give right bytes or an error, within bounded memory.
//!
//! In a program of its own: the peak memory of a process is at least that of the process that started it.

mod support;

use std::{
    env, fs,
    io::Write,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use floe_image::ImageSource;
use floe_remote::{ImageOptions, Outage, RemoteImage, RemoteOptions};
use floe_remote_cache::{DigestTable, VerityOptions, append_verity};
use floe_testkit::{Random, run_bounded};
use support::{
    Answer, Asked, Server,
    content::Content,
    mutation::{mutate, mutate_body, mutate_pause},
    object,
};

/// The number of wrong answers, unless `FLOE_HOSTILE_ANSWERS` sets it.
const ANSWERS: u64 = 200;

/// The memory limit for all of it, including the server, in bytes.
const RESIDENT_BYTES_MAX: u64 = 256 << 20;

/// The time limit, for a busy machine.
const TIME_MAX: Duration = Duration::from_secs(1_800);

const CHILD: &str = "FLOE_REMOTE_HOSTILE_CHILD";

/// The path of the image on the web server.
const WEB_PATH: &str = "/image";

#[test]
fn hostile_servers_give_no_wrong_byte() {
    if env::var_os(CHILD).is_some() {
        return read_from_hostile_servers();
    }
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "hostile_servers_give_no_wrong_byte", "--test-threads=1"]).env(CHILD, "1");
    let run = run_bounded(&mut command, TIME_MAX).expect("it runs");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{}\n{said}\n{}", run.status, run.stderr);
    assert!(run.resident_bytes_max < RESIDENT_BYTES_MAX, "{} bytes", run.resident_bytes_max);
}

/// Opens and reads images until the number of wrong answers is reached.
fn read_from_hostile_servers() {
    let wanted = env::var("FLOE_HOSTILE_ANSWERS").ok().and_then(|text| text.parse().ok()).unwrap_or(ANSWERS);
    let image = object((1 << 20) + 777, 31);
    let (mut content, directory) = (Content::default(), tempfile::tempdir().expect("a directory"));
    let path = directory.path().join("image");
    let mut file = fs::File::create_new(&path).expect("made");
    file.write_all(&image).expect("written");
    drop(file);
    let file = fs::File::options().read(true).write(true).open(&path).expect("opened");
    let root = append_verity(&file, &VerityOptions::default()).expect("a hash tree");
    let with_tree = fs::read(&path).expect("read");
    let annotations = format!(
        r#""org.erofs.dmverity.root_digest":"sha256:{}","org.erofs.dmverity.hash_offset":"{}""#,
        root.root_hash, root.hash_offset
    );
    let table = DigestTable::of(&mut &*image).expect("a table");
    let (_, bundle) = content.bundle(&image, &[(0, 3), (200, 50), (60, 20)]);
    let table_annotation = format!(r#""dev.floe.digest-table":"{}""#, content.blob(&table.to_bytes()));
    let (_, beside) = content.tree(&image);
    let digests = [
        content.image("beside", &image, &format!("{beside},{bundle}")),
        content.image("table", &image, &format!("{table_annotation},{bundle}")),
        content.image("tree", &with_tree, &format!("{annotations},{bundle}")),
    ];
    let tags = ["beside", "table", "tree"].map(|tag| format!("oci://HOST/team/image:{tag}"));
    let mut urls: Vec<String> = digests.iter().map(|digest| format!("oci://HOST/team/image@{digest}")).collect();
    urls.extend(tags);
    urls.push(format!("http://HOST{WEB_PATH}#table=sha256:{}", table.digest()));
    urls.push(format!("http://HOST{WEB_PATH}"));
    let table = table.to_bytes();
    let sound_answer = {
        let image = image.clone();
        move |asked: &Asked| match asked.path.strip_prefix(WEB_PATH) {
            Some("") => Answer::of_object(asked, &image, "\"web\""),
            Some(_) => Answer::of_object(asked, &table, "\"table\""),
            None => content.answer(asked),
        }
    };

    let sound_answer = Arc::new(sound_answer);
    let (mut right, mut failed, mut unopened) = (0_u64, 0_u64, 0_u64);
    let answers = Arc::new(AtomicU64::new(0));
    for case in 0_u64.. {
        if answers.load(Relaxed) >= wanted {
            break;
        }
        let url = &urls[case as usize % urls.len()];
        // Bytes that nothing verifies may be wrong, so only the rest of the answers changes.
        let is_verified = url.starts_with("oci:") || url.contains('#');
        let (served, counted, random) =
            (Arc::clone(&sound_answer), Arc::clone(&answers), Mutex::new(Random::new(case)));
        // Some wrong answers begin only after the image is open, because most earlier ones prevent opening it.
        let sound_answers = AtomicU64::new(if case % 3 == 0 { 0 } else { 4 + case % 5 });
        let server = Server::start(move |asked| {
            let answer = served(asked);
            let mut random = random.lock().expect("no panic");
            if sound_answers.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() || random.below(3) == 0
            {
                return answer;
            }
            counted.fetch_add(1, Relaxed);
            let answer = match random.below(8) {
                0 => mutate_pause(&mut random),
                1..4 if is_verified => mutate_body(&mut random, answer),
                _ => mutate(&mut random, answer),
            };
            // The connection is closed afterwards, so that the client does not wait for missing bytes.
            Answer { cut: answer.cut.or(Some(answer.body.len())), ..answer }
        });
        let cache = tempfile::tempdir().expect("a directory");
        let options = ImageOptions {
            remote: RemoteOptions {
                // Most retries are later than this, but not all.
                outage: Outage::Wait(Duration::from_millis(if case % 4 == 0 { 50 } else { 0 })),
                stall: Duration::from_secs(10),
                ..RemoteOptions::default()
            },
            require_verified: is_verified,
            cache_directory: Some(cache.path().to_owned()),
            cache_bytes_max: Some(if case % 2 == 0 { 0 } else { 64 << 20 }),
        };
        let url = url.replace("HOST", &server.address.to_string());
        let Ok(opened) = RemoteImage::open(&url, &options, |_| ()) else {
            unopened += 1;
            continue;
        };
        let mut random = Random::new(case + 1000);
        for _ in 0..12 {
            let offset = random.below(image.len() as u64 - 1);
            let mut output = vec![0; 1 + random.below((image.len() as u64 - offset).min(100_000)) as usize];
            match opened.read_at(offset, &mut output) {
                Ok(()) => {
                    right += 1;
                    let place = offset as usize;
                    assert!(
                        output == image[place..place + output.len()],
                        "case {case}, {url}: wrong bytes at {offset}"
                    );
                }
                Err(_) => failed += 1,
            }
        }
    }
    println!("{right} reads, {failed} failed, {unopened} images not opened");
    assert!(right > wanted / 50 && failed > wanted / 50 && unopened > wanted / 100, "{right}, {failed}, {unopened}");
}
