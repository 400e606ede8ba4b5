//! `floe status` and `floe tune`, run with the built program, on mounts that work, hang, or are dead.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use floe_testkit::{
    KernelCaches, copy_program, drop_kernel_caches,
    skip::{self, Need},
};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::program::{Place, Serving, demo, floe, processes_with, run, told, umount, until};

const NOTHING: [&str; 0] = [];

/// Fields of the JSON. Programs rely on each of them: fields may be added, and any other change needs a new schema number.
const FIELDS: &str = "
    block_cache.budget_bytes block_cache.evictions block_cache.hits block_cache.joins block_cache.misses
    block_cache.spill_file_blocks block_cache.spill_file_bytes block_cache.spill_file_hits block_cache.used_bytes
    decoders.budget_bytes decoders.used_bytes decoders.used_bytes_max decoders.waits device
    launch.failed_names launch.found_names launch.missing_names launch.outside_files launch.range_bytes
    launch.ranges launch.reason launch.skipped_steps launch.source launch.state launch.steps
    launch.requests.forget launch.requests.getattr launch.requests.getxattr launch.requests.listxattr
    launch.requests.lookup launch.requests.lseek launch.requests.open launch.requests.opendir
    launch.requests.read launch.requests.readdir launch.requests.readdirplus launch.requests.readlink
    launch.requests.statfs
    faults.corrupt faults.no_memory faults.other faults.overdue faults.source faults.unsupported front.kind front.reason remote image.devices image.format image.offset_bytes image.path latency[].buckets[].count
    latency[].buckets[].up_to_ns latency[].count latency[].max_ns latency[].mean_ns latency[].p50_ns
    latency[].p999_ns latency[].p99_ns latency[].stage latency[].total_ns lz4.decodes lz4.temporary_pages
    lz4.temporary_pages_max lz4.window_bytes_max metadata_cache.budget_bytes metadata_cache.evictions
    metadata_cache.hits metadata_cache.joins metadata_cache.misses metadata_cache.releases metadata_cache.used_bytes
    metadata_cache.wakes mountpoint options[].is_tunable options[].key options[].value page_pool.ahead_ns page_pool.ahead_pages page_pool.given_up
    page_pool.high_water_pages page_pool.is_locked page_pool.missed page_pool.reserved_pages page_pool.taken page_pool.used_pages page_pool.waited
    process read_around.ahead_blocks read_around.cancelled_blocks read_around.dropped read_around.given_up_blocks
    read_around.stored_bytes read_around.used_blocks read_around.wasted_blocks read_blocks.budget_bytes
    read_blocks.used_bytes read_blocks.used_bytes_max read_blocks.waits read_results.budget_bytes
    read_results.used_bytes read_results.used_bytes_max read_results.waits real_time_throttled requests.forget
    requests.getattr requests.getxattr requests.listxattr requests.lookup requests.lseek requests.open requests.opendir
    requests.read requests.readdir requests.readdirplus requests.readlink requests.statfs sandbox.capabilities sandbox.landlock
    sandbox.landlock_abi sandbox.no_new_privs sandbox.seccomp schema
    stored_metadata_cache.budget_bytes stored_metadata_cache.evictions stored_metadata_cache.hits
    stored_metadata_cache.joins stored_metadata_cache.misses stored_metadata_cache.releases
    stored_metadata_cache.used_bytes stored_metadata_cache.wakes
    threads[].cpu threads[].name threads[].priority_asked
    threads[].priority_got threads[].tasks threads[].throttled threads[].yielded transport.kind transport.reason uptime_seconds version work.decoded_bytes
    work.decodes work.fetched_bytes work.fetches work.outstanding work.outstanding_max";

fn ready() -> bool {
    skip::ready(&[Need::Root, Need::Fuse])
}

fn ask(arguments: &[&str], directory: &Path) -> (Option<i32>, String, String) {
    let mut command = floe();
    let output = run(command.arg(arguments[0]).arg(directory).args(&arguments[1..]));
    let (code, errors) = told(&output);
    (code, String::from_utf8(output.stdout).expect("text"), errors)
}

fn status(directory: &Path) -> Value {
    let (code, text, errors) = ask(&["status", "--json"], directory);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    serde_json::from_str(&text).expect("JSON")
}

/// The value at a path of keys.
fn at<'v>(value: &'v Value, path: &str) -> &'v Value {
    path.split('.').fold(value, |value, key| value.get(key).unwrap_or_else(|| panic!("{path}")))
}

fn number(value: &Value, path: &str) -> u64 {
    at(value, path).as_u64().unwrap_or_else(|| panic!("{path} is {}", at(value, path)))
}

fn option(value: &Value, key: &str) -> String {
    let options = at(value, "options").as_array().expect("a list");
    let found = options.iter().find(|option| option["key"] == key).expect("the option");
    found["value"].as_str().expect("text").to_owned()
}

fn collect_fields(value: &Value, path: &str, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                collect_fields(member, &if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, fields);
            }
        }
        Value::Array(elements) if elements.iter().any(Value::is_object) => {
            elements.iter().for_each(|element| collect_fields(element, &format!("{path}[]"), fields));
        }
        _ => {
            fields.insert(path.to_owned());
        }
    }
}

/// Reads all files below a directory, without the page cache if possible.
fn read_all(directory: &Path) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() {
            read_all(&entry.path());
        } else if kind.is_file() {
            assert!(fs::read(entry.path()).is_ok());
        }
    }
}

#[test]
fn the_status_of_a_mount_under_load_is_complete() {
    if !ready() {
        return;
    }
    let serving = Serving::new(&demo(), ["-o", "cache=1M,threads=3,deadline=90s"]);
    let directory = &serving.place.path;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    read_all(directory);
                    // Makes the next round ask the program again.
                    if !drop_kernel_caches(KernelCaches::All) {
                        break;
                    }
                }
            });
        }
        let mut last = 0;
        for _ in 0..10 {
            let report = status(directory);
            let reads = number(&report, "requests.read");
            assert!(reads >= last);
            last = reads;
            thread::sleep(Duration::from_millis(20));
        }
        until("some reads end", || number(&status(directory), "work.decodes") > 0);
        is_over.store(true, Relaxed);
    });
    // Prefetch may go on after the last read.
    let is_calm =
        |report: &Value| ["work.outstanding", "page_pool.used_pages"].iter().all(|path| number(report, path) == 0);
    until("nothing is under way", || is_calm(&status(directory)));
    let report = status(directory);
    let mut fields = BTreeSet::new();
    collect_fields(&report, "", &mut fields);
    let expected: BTreeSet<String> = FIELDS.split_whitespace().map(str::to_owned).collect();
    assert!(fields.is_superset(&expected), "missing: {:?}", expected.difference(&fields));
    assert_eq!(number(&report, "schema"), 3);
    assert_eq!(at(&report, "mountpoint"), directory.to_str().expect("text"));
    assert_eq!(at(&report, "image.format"), "EROFS");
    assert_eq!((option(&report, "cache"), option(&report, "deadline")), ("1M".to_owned(), "90s".to_owned()));
    assert_eq!(number(&report, "block_cache.budget_bytes"), 1 << 20);
    for path in [
        "requests.readdirplus",
        "requests.read",
        "work.decodes",
        "work.fetches",
        "page_pool.taken",
        "metadata_cache.budget_bytes",
    ] {
        assert!(number(&report, path) > 0, "{path}");
    }
    assert_eq!(number(&report, "work.outstanding"), 0);
    assert_eq!(number(&report, "page_pool.used_pages"), 0);
    let threads = at(&report, "threads").as_array().expect("a list");
    for name in ["floe-dec/0", "floe-fuse/0"] {
        assert!(
            threads.iter().any(|thread| thread["name"] == name && thread["priority_asked"] == "auto"),
            "{threads:?}"
        );
    }
    let decode = at(&report, "latency").as_array().expect("a list").iter().find(|stage| stage["stage"] == "decode");
    let decode = decode.expect("the stage");
    assert!(number(decode, "count") >= number(&report, "work.decodes"));
    let counts: Vec<u64> = decode["buckets"].as_array().expect("a list").iter().map(|b| number(b, "count")).collect();
    assert!(counts.is_sorted() && counts.last() <= Some(&number(decode, "count")), "{counts:?}");
    let times = ["p50_ns", "p99_ns", "p999_ns", "max_ns"].map(|path| number(decode, path));
    assert!(times.is_sorted() && times[0] > 0, "{times:?}");

    let (code, text, _) = ask(&["status"], directory);
    assert_eq!(code, Some(0));
    for part in ["EROFS image", "cache=1M", "floe-dec/0", "queue wait", "p99.9", "reserved pages", "lock acquisitions"]
    {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

/// Checks a sample line, `name{label="value",…} number`, and returns its name.
fn sample_name(line: &str) -> &str {
    let (name, rest) = line.split_once('{').expect(line);
    assert!(
        name.chars().all(|character| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '_')
    );
    let (labels, value) = rest.rsplit_once("} ").expect(line);
    assert!(value.parse::<f64>().is_ok(), "{line}");
    let mut rest = labels;
    loop {
        let (label, after) = rest.split_once("=\"").expect(line);
        assert!(!label.is_empty() && label.chars().all(|character| character.is_ascii_lowercase()), "{line}");
        let mut is_escaped = false;
        let end = after.find(|character| {
            let ends = character == '"' && !is_escaped;
            is_escaped = character == '\\' && !is_escaped;
            ends
        });
        rest = &after[end.expect(line) + 1..];
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None => break assert!(rest.is_empty(), "{line}"),
        }
    }
    name
}

#[test]
fn prometheus_can_read_it() {
    if !ready() {
        return;
    }
    let serving = Serving::new(&demo(), NOTHING);
    read_all(&serving.place.path);
    let (code, text, errors) = ask(&["status", "--prometheus"], &serving.place.path);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let (mut families, mut current) = (BTreeSet::new(), None);
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').expect(line);
            assert!(words.len() > 5 && families.insert(name), "{line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect(line);
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            assert!(["counter", "gauge", "histogram"].contains(&kind) && families.contains(name), "{line}");
            current = Some((name, kind));
        } else {
            let name = sample_name(line);
            let (family, kind) = current.expect("a type comes first");
            let is_its = match kind {
                "histogram" => ["_bucket", "_sum", "_count"].iter().any(|end| name == format!("{family}{end}")),
                _ => name == family,
            };
            assert!(is_its, "{line} under {family}");
        }
    }
    for line in [
        "floe_requests_total{",
        "floe_stage_duration_seconds_bucket{",
        "le=\"+Inf\"",
        "le=\"0.0001\"",
        "floe_thread_info{",
    ] {
        assert!(text.contains(line), "{line}");
    }
}

#[test]
fn options_change_while_the_mount_is_read() {
    if !ready() {
        return;
    }
    let serving = Serving::new(&demo(), ["-o", "priority=normal"]);
    let directory = &serving.place.path;
    let expected: Vec<_> = ["README.txt"].iter().map(|name| fs::read(directory.join(name)).expect("data")).collect();
    for (changes, key, value) in [
        (&["cache=2M"][..], "cache", "2M"),
        (&["cache=0"], "cache", "0"),
        (&["cache=64M", "metadata-cache=16"], "metadata-cache", "16"),
        (&["prefetch=none"], "prefetch", "none"),
        (&["prefetch=all", "readahead-alloc=wait"], "readahead-alloc", "wait"),
        (&["reserved_pages=0"], "reserved-pages", "0"),
        (&["reserved-pages=77"], "reserved-pages", "77"),
        (&["sync-decompress=never"], "sync-decompress", "never"),
        (&["workers=shared"], "workers", "shared"),
        (&["workers=inline"], "workers", "inline"),
        (&["workers=per-cpu", "priority=nice:3"], "priority", "nice:3"),
    ] {
        let arguments: Vec<&str> = ["tune"].iter().chain(changes).copied().collect();
        assert_eq!(ask(&arguments, directory), (Some(0), String::new(), String::new()), "{changes:?}");
        assert_eq!(option(&status(directory), key), value, "{changes:?}");
        if !drop_kernel_caches(KernelCaches::All) {
            return;
        }
        read_all(directory);
        assert!(fs::read(directory.join("README.txt")).expect("data") == expected[0]);
    }
    let report = status(directory);
    assert_eq!(number(&report, "page_pool.reserved_pages"), 77);
    assert_eq!(number(&report, "metadata_cache.budget_bytes"), 16 * 8192);
    let threads = at(&report, "threads").as_array().expect("a list");
    let is_moved =
        |name: &str| threads.iter().any(|thread| thread["name"] == name && thread["priority_got"] == "nice:3");
    assert!(is_moved("floe-dec/0") && is_moved("floe-fuse/0"), "{threads:?}");

    let (code, list, _) = ask(&["tune"], directory);
    assert_eq!(code, Some(0));
    let threads = std::thread::available_parallelism().expect("some CPUs").get().max(2);
    let fixed = format!("threads={threads}  (fixed while mounted)\n");
    assert!(list.contains("cache=64M\n") && list.contains(&fixed), "{list}");
    for (change, reason) in [
        ("threads=7", "threads cannot change while the image is mounted: mount it again with -o threads=7"),
        ("cache=tall", "cache: 'tall' is not a size: give a number of bytes, or one with k, M or G"),
        ("cache=4096P", "cache: '4096P' is not a size: give a number of bytes, or one with k, M or G"),
        (
            "metadata-cache=single-lock:8",
            "the design of the metadata cache is fixed, and so is the size of the single-lock design",
        ),
        ("colour=red", "unknown option colour: floe tune DIR lists all options"),
    ] {
        let (code, _, errors) = ask(&["tune", "cache=5M", change], directory);
        assert_eq!((code, errors), (Some(1), format!("floe: {}: {reason}\n", directory.display())));
    }
    assert_eq!(option(&status(directory), "cache"), "64M", "one wrong option prevents all changes");
}

#[test]
fn other_mounts_and_mounts_of_others_are_refused_in_one_line() {
    if !ready() {
        return;
    }
    let empty = tempfile::tempdir().expect("a directory");
    let path = empty.path().canonicalize().expect("a directory");
    for (directory, expected) in [
        (path.clone(), format!("{} is not a mountpoint", path.display())),
        (path.join("missing"), format!("{}: No such file or directory (os error 2)", path.join("missing").display())),
        ("/proc".into(), "/proc is a mount of proc, not one of Floe".to_owned()),
    ] {
        for command in ["status", "tune"] {
            assert_eq!(ask(&[command], &directory), (Some(1), String::new(), format!("floe: {expected}\n")));
        }
    }
    let serving = Serving::new(&demo(), NOTHING);
    let copy = tempfile::Builder::new().prefix("floe-status-").tempdir_in("/tmp").expect("a directory");
    fs::set_permissions(copy.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    let program = copy.path().join("floe");
    copy_program(env!("CARGO_BIN_EXE_floe"), &program);
    for arguments in [["status", "--json"], ["tune", "cache=0"]] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
        let output = run(command.arg(arguments[0]).arg(&serving.place.path).arg(arguments[1]));
        let reason =
            format!("floe: {} was mounted by user 0: only that user can query it\n", serving.place.path.display());
        assert_eq!((told(&output), output.stdout), ((Some(1), reason), Vec::new()));
    }
    let report = status(&serving.place.path);
    let socket = socket_of(at(&report, "device").as_str().expect("text"));
    let mode = |path: &Path| {
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).expect("it is there").permissions()) & 0o777
    };
    assert_eq!((mode(&socket), mode(socket.parent().expect("a directory"))), (0o600, 0o700));
}

fn socket_of(device: &str) -> std::path::PathBuf {
    Path::new("/run/floe").join(format!("{}.sock", device.replace(':', "-")))
}

#[test]
fn sockets_go_with_their_mounts_and_those_left_behind_do_no_harm() {
    if !ready() {
        return;
    }
    let mut serving = Serving::new(&demo(), NOTHING);
    let socket = socket_of(at(&status(&serving.place.path), "device").as_str().expect("text"));
    // Another test's mount may get the device number at once, and its socket then has the same name.
    let identity = || fs::metadata(&socket).map(|found| (found.ino(), found.ctime(), found.ctime_nsec())).ok();
    let before = identity();
    assert!(before.is_some());
    serving.signal(Signal::TERM);
    assert_eq!(serving.end().0.code(), Some(0));
    assert_ne!(identity(), before);

    let mut serving = Serving::new(&demo(), NOTHING);
    let socket = socket_of(at(&status(&serving.place.path), "device").as_str().expect("text"));
    serving.signal(Signal::KILL);
    let _ = serving.end();
    assert!(socket.exists(), "a killed process does not remove its socket");
    for command in ["status", "tune"] {
        let (code, _, errors) = ask(&[command], &serving.place.path);
        let directory = serving.place.path.display();
        let expected =
            format!("floe: no program answers for {directory}: if it is gone, run floe umount {directory}\n");
        assert_eq!((code, errors), (Some(1), expected));
    }
    drop(serving);
    // A later mount eventually gets the device number again.
    for _ in 0..20 {
        let again = Serving::new(&demo(), NOTHING);
        let report = status(&again.place.path);
        if socket_of(at(&report, "device").as_str().expect("text")) == socket {
            return;
        }
    }
    let _ = fs::remove_file(&socket);
    skip::skipped("no later mount got the device number of the one that died");
}

#[test]
fn a_daemon_answers_under_any_name_of_its_directory() {
    if !ready() {
        return;
    }
    let place = Place::new();
    let mut command = floe();
    let output = run(command.arg("mount").arg(demo()).arg(&place.path).arg("--daemon"));
    assert_eq!(told(&output).0, Some(0));
    let elsewhere = tempfile::tempdir().expect("a directory");
    let link = elsewhere.path().join("link");
    symlink(&place.path, &link).expect("ours");
    let pids = processes_with(place.path.to_str().expect("text"));
    for (directory, name) in
        [("/", place.path.as_path()), ("/tmp", &link), (place.path.to_str().expect("text"), Path::new("."))]
    {
        let mut command = floe();
        let output = run(command.current_dir(directory).arg("status").arg(name).arg("--json"));
        assert_eq!(told(&output), (Some(0), String::new()), "{name:?}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(pids, [u32::try_from(number(&report, "process")).expect("a process")]);
    }
    assert_eq!(umount(&place.path).0, Some(0));
}

#[test]
fn watching_goes_on_until_the_mount_ends() {
    if !ready() {
        return;
    }
    let mut serving = Serving::new(&demo(), NOTHING);
    let mut command = floe();
    command.arg("status").arg(&serving.place.path).args(["--json", "--watch", "0.05"]);
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("it is piped")).lines();
    let mut uptime = 0.0;
    for _ in 0..4 {
        let report: Value = serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON");
        let now = at(&report, "uptime_seconds").as_f64().expect("a number");
        assert!(now > uptime);
        uptime = now;
    }
    serving.signal(Signal::TERM);
    assert_eq!(serving.end().0.code(), Some(0));
    let rest: Vec<_> = lines.collect();
    let output = watch.wait_with_output().expect("it ends");
    assert_eq!(told(&output).0, Some(1), "{} more", rest.len());
}

#[test]
fn a_mount_whose_image_is_stuck_answers() {
    if !ready() {
        return;
    }
    // An image inside an image: while the program that serves the outer one is stopped, the inner one is stuck.
    let folder = tempfile::tempdir().expect("a directory");
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("ours");
    fs::copy(demo(), tree.join("inner.erofs")).expect("a copy");
    let outer_image = folder.path().join("outer.erofs");
    let made = run(floe().arg("mkfs").arg(&outer_image).arg(&tree));
    assert_eq!(told(&made).0, Some(0), "{made:?}");
    let outer = Serving::new(&outer_image, NOTHING);
    let inner = Serving::new(&outer.place.file("inner.erofs"), ["-o", "deadline=3s"]);
    if !drop_kernel_caches(KernelCaches::All) {
        return;
    }
    outer.stop();
    let directory = inner.place.path.clone();
    let reader = thread::spawn(move || read_all_that_can_be(&directory));
    until("reads are stuck", || number(&status(&inner.place.path), "work.outstanding") > 0);
    assert_eq!(ask(&["tune", "cache=1M"], &inner.place.path).0, Some(0));
    until("the deadline passes", || number(&status(&inner.place.path), "faults.overdue") > 0);
    outer.signal(Signal::CONT);
    reader.join().expect("no panic");
    until("the source answers again", || number(&status(&inner.place.path), "work.outstanding") == 0);
}

fn read_all_that_can_be(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => read_all_that_can_be(&entry.path()),
            Ok(kind) if kind.is_file() => drop(fs::read(entry.path())),
            _ => {}
        }
    }
}
