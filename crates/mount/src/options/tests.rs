//! Tests of each row of the table.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use floe::{EngineOptions, Offset, OpenOptions, VolumeOptions};
use floe_engine::PrefetchSet;
use floe_fuse::Readdir;
use floe_keeper::Access;
use floe_sandbox::Mode;

use super::{
    Settings, Strictness, help, page,
    row::{Default as RowDefault, OptionRow, Value, WhileMounted},
    table::{FOR_THE_KERNEL, WITHOUT_EFFECT, rows},
};
use crate::{
    front::Front,
    launch::{LAUNCH_WAIT, ProfileChoice},
    transport::TransportChoice,
};

fn taken(list: &str) -> Result<Settings, String> {
    let mut settings = ample();
    settings.take_list(list, Strictness::User).map_err(|fail| fail.to_string())?;
    Ok(settings)
}

/// The defaults on a machine with ample memory.
fn ample() -> Settings {
    Settings { open: OpenOptions { engine: EngineOptions::default(), ..OpenOptions::default() }, ..Settings::default() }
}

fn shown(row: &OptionRow, settings: &Settings) -> Option<String> {
    row.show.map(|show| show(settings))
}

/// The settings as text, for comparison.
fn fields(settings: &Settings) -> String {
    // Defaults that are given are not told apart from others.
    let launch_wait = settings.launch_wait.or(Some(LAUNCH_WAIT));
    let settings = Settings { launch_wait, has_deadline: false, ..settings.clone() };
    format!("{settings:?}")
}

/// A valid value of the option that is not its default: the first alternative of its form that differs.
fn sample(row: &OptionRow) -> Option<String> {
    let form = row.form();
    let alternatives = match row.value {
        Value::Flag(_) => return None,
        Value::OnOff(_) => "on|off",
        _ => form.split_once('=').expect("a value").1,
    }
    .split('|');
    let examples = [("SIZE", "12k"), ("N", "9"), ("TIME", "7ms"), ("DURATION", "7s"), ("FILE", "/a"), ("DIR", "/a")];
    let example = |alternative: &str| {
        let plain = alternative.replace(['[', ']'], "");
        plain
            .split_inclusive([':', '+'])
            .map(|word| {
                let (name, end) = word.split_at(word.trim_end_matches([':', '+']).len());
                let found = examples.iter().find(|(placeholder, _)| *placeholder == name);
                format!("{}{end}", found.map_or(name, |(_, example)| example))
            })
            .collect::<String>()
    };
    alternatives.map(example).find(|value| row.default_text() != Some(value))
}

#[test]
fn names_are_unique_and_written_with_dashes() {
    let mut names = BTreeSet::new();
    let refusal = WITHOUT_EFFECT.iter().chain(FOR_THE_KERNEL).copied();
    for name in rows().map(|row| row.name).chain(refusal) {
        assert!(names.insert(name.to_owned()), "{name} twice");
    }
    for row in rows() {
        assert!(!row.name.contains('_') && !row.about.ends_with('.'), "{}", row.name);
        if let Value::OnOff(_) = row.value {
            assert!(names.insert(format!("no{}", row.name)), "no{} twice", row.name);
        }
    }
}

#[test]
fn each_option_sets_something_with_dashes_and_with_underscores() {
    for row in rows() {
        let value = sample(row).map_or_else(String::new, |value| format!("={value}"));
        let expected = taken(&format!("{}{value}", row.name)).expect(row.name);
        // The kernel's own permission checks are on by default.
        if row.name != "default-permissions" {
            assert_ne!(fields(&expected), fields(&ample()), "{}", row.name);
        }
        let found = taken(&format!("{}{value}", row.name.replace('-', "_"))).expect(row.name);
        assert_eq!(fields(&found), fields(&expected), "{}", row.name);
    }
}

#[test]
fn each_option_takes_back_the_value_that_it_shows() {
    for row in rows().filter(|row| row.show.is_some()) {
        for settings in [ample(), taken(&format!("{}={}", row.name, sample(row).expect("a value"))).expect(row.name)] {
            let value = shown(row, &settings).expect("shown");
            let again = taken(&format!("{}={value}", row.name)).expect(row.name);
            assert_eq!(shown(row, &again), Some(value), "{}", row.name);
        }
    }
}

#[test]
fn defaults_are_what_the_table_says() {
    for row in rows() {
        if let RowDefault::Value(value) = row.default {
            let found = taken(&format!("{}={value}", row.name)).expect(row.name);
            // At byte 0 the image is at the start of the file, which is the default.
            if row.name != "offset" {
                assert_eq!(fields(&found), fields(&ample()), "{}", row.name);
            }
        }
    }
}

#[test]
fn tunable_options_change_the_engine_and_the_volume_alone() {
    for row in rows().filter(|row| row.while_mounted == WhileMounted::Tunable) {
        let change = format!("{}={}", row.name, sample(row).expect("a value"));
        let found = taken(&change).expect(row.name);
        let tuned = ample().tuned(std::slice::from_ref(&change)).expect(row.name).open;
        assert!(tuned != ample().open && tuned == found.open, "{change}");
        let (engine, volume) = (EngineOptions::default(), VolumeOptions::default());
        let unchanged = Settings { open: OpenOptions { engine, volume, ..found.open }, ..found };
        assert_eq!(fields(&unchanged), fields(&ample()), "{change}");
    }
}

#[test]
fn bounds_are_kept() {
    for row in rows() {
        let (outside, inside) = match row.value {
            Value::Count { min, max, .. } => (
                [min.checked_sub(1), max.checked_add(1)].into_iter().flatten().map(|count| count.to_string()).collect(),
                [min, max].map(|count| count.to_string()),
            ),
            Value::Bytes { max, .. } => {
                let above: Vec<_> = max.checked_add(1).map(|count| count.to_string()).into_iter().collect();
                (above, [0, max].map(|count| count.to_string()))
            }
            Value::Time { max, .. } if max < Duration::MAX => {
                (vec![format!("{}us", max.as_micros() + 1)], [1, max.as_micros()].map(|time| format!("{time}us")))
            }
            _ => continue,
        };
        for value in outside {
            taken(&format!("{}={value}", row.name)).expect_err(row.name);
        }
        for value in inside {
            taken(&format!("{}={value}", row.name)).expect(row.name);
        }
    }
}

#[test]
fn the_help_and_the_page_have_every_option() {
    for row in rows() {
        assert!(help().contains(&format!("\n  {}", row.form())), "{}", row.name);
    }
    assert!(help().lines().all(|line| line.chars().count() <= 100));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
    let docs = fs::read_to_string(&path).expect("docs/options.md");
    assert!(docs == page(), "docs/options.md is out of date: cargo run -- mount -o help=markdown > docs/options.md");
}

#[test]
fn lists_as_fstab_has_them_are_taken() {
    let list = "ro,noauto,nofail,_netdev,x-systemd.automount,defaults,user,,relatime,comment=a,nosuid,nodev";
    let settings = taken(list).expect("all are known");
    assert!(
        settings.mount.kernel.flags.nosuid && settings.mount.kernel.flags.nodev && !settings.mount.kernel.flags.noexec
    );
}

#[test]
fn values_reach_their_settings() {
    let settings = taken(
        "cache=1g+2g,threads=3,deadline=500ms,uid=5,gid=6,offset=4096,device=/a\\,b,device=/c,device-directory=/d,readdir=plain,\
         max_background=9,read-ahead=1m,access=private,noacl,overlay-xattrs=user,clone_fd,fsname=name,subtype=kind,workers=inline,\
         decode-marks=/d,front=kernel,transport=dev,profile=/p,sandbox=require,busy-polling=70us,spill-file=1M:/e:f,context=\"system_u:object_r:a:s0:c1,c2\"",
    )
    .expect("all are known");
    let Settings { open, mount, source, decode_marks, front, transport, profile, sandbox, .. } = settings;
    assert_eq!(profile, ProfileChoice::File("/p".into()));
    assert_eq!((front, transport, sandbox), (Front::Kernel, TransportChoice::Device, Mode::Require));
    assert_eq!(decode_marks, Some("/d".into()));
    assert_eq!((open.engine.cache_bytes, open.engine.cache_growth_bytes), (1 << 30, 2 << 30));
    assert_eq!((open.engine.spill_file_bytes, open.engine.spill_file_directory), (1 << 20, Some("/e:f".into())));
    assert_eq!(open.engine.workers.to_string(), "inline");
    assert_eq!(open.offset, Offset::At(4096));
    assert_eq!(open.devices, [PathBuf::from("/a,b"), PathBuf::from("/c")]);
    assert_eq!(open.device_directory, Some("/d".into()));
    assert_eq!(mount.threads.get(), 3);
    assert_eq!(mount.deadline, Some(Duration::from_millis(500)));
    assert_eq!(mount.busy_polling, Some(Duration::from_micros(70)));
    assert_eq!((mount.uid, mount.gid, mount.user_overlay), (Some(5), Some(6), true));
    assert_eq!((mount.background_max.get(), mount.kernel.readahead_bytes), (9, Some(1 << 20)));
    assert_eq!((mount.readdir, mount.kernel.acl, mount.clone_fd), (Readdir::Plain, Some(false), true));
    assert_eq!((mount.kernel.access, mount.kernel.subtype.as_str()), (Some(Access::Owner), "kind"));
    assert_eq!(mount.kernel.others, ["context=system_u:object_r:a:s0:c1,c2"]);
    assert_eq!(source.as_deref(), Some("name"));
}

#[test]
fn wrong_options_are_reported() {
    for (list, expected) in [
        ("rw", "images are read-only: omit -o rw"),
        ("colour", "no such option: -o colour (see floe mount -o help)"),
        ("colour=red", "no such option: -o colour (see floe mount -o help)"),
        ("threads", "-o threads needs a value: -o threads=…"),
        ("threads=0", "-o threads: '0' is not a number of at least 1"),
        ("private", "no such option: -o private (see floe mount -o help)"),
        ("allow_other=yes", "-o allow_other: takes no value"),
        ("noacl=maybe", "-o noacl: 'maybe' is not on or off"),
        ("max_background=70000", "-o max_background: '70000' is not a number from 1 to 65535"),
        ("cache=much", "-o cache: 'much' is not a size: give a number of bytes, or one with k, M or G"),
        ("readdir=fast", "-o readdir: 'fast' is not adaptive, plain, plus or auto"),
        ("workers=many", "-o workers: 'many' is not per-cpu, shared or inline"),
        ("sandbox=perhaps", "-o sandbox: 'perhaps' is not off, auto or require"),
        ("busy-polling=1s", "-o busy-polling: 1s is more than 10ms"),
        ("read-ahead=8g", "-o read-ahead: 8g is more than 4G"),
    ] {
        assert_eq!(taken(list).expect_err(list), expected);
    }
    for strictness in [Strictness::MountHelper, Strictness::Sloppy] {
        Settings::default().take_list("rw", strictness).expect("mount(8) adds it");
    }
    Settings::default().take_list("colour=red,blue", Strictness::Sloppy).expect("it is ignored");
}

#[test]
fn changes_are_applied_together_or_not_at_all() {
    let check =
        |changes: &[&str]| ample().tuned(&changes.iter().map(|change| (*change).to_owned()).collect::<Vec<_>>());
    let found =
        check(&["cache=1M", "prefetch=none", "reserved_pages=7", "workers=inline"]).expect("all are known").open;
    let OpenOptions { engine, volume, .. } = found;
    assert_eq!((engine.cache_bytes, volume.prefetch, engine.reserved_pages), (1 << 20, PrefetchSet::NONE, 7));
    for (changes, expected) in [
        (&["cache=1M", "cache"][..], "cache needs a value: cache=…"),
        (&["cache=much"], "cache: 'much' is not a size: give a number of bytes, or one with k, M or G"),
        (&["threads=3"], "threads cannot change while the image is mounted: mount it again with -o threads=3"),
        (&["offset=3"], "offset cannot change while the image is mounted: mount it again with -o offset=3"),
        (&["read_ahead=1M"], "read-ahead is a setting of the kernel: root sets it in /sys/class/bdi/…/read_ahead_kb"),
        (&["colour=red"], "unknown option colour: floe tune DIR lists all options"),
    ] {
        assert_eq!(check(changes).map(|_| ()).expect_err("it makes no sense"), expected);
    }
}

#[test]
fn a_cache_grows_by_default_and_on_demand() {
    const M: u64 = 1 << 20;
    for (list, expected) in [
        ("", (64 * M, EngineOptions::default().cache_growth_bytes)),
        ("cache=8M", (8 * M, 0)),
        ("cache=8M+1M", (8 * M, M)),
        ("cache=8M+1M,cache=9M", (9 * M, 0)),
    ] {
        let engine = taken(list).expect(list).open.engine;
        assert_eq!((engine.cache_bytes, engine.cache_growth_bytes), expected, "{list}");
    }
}
