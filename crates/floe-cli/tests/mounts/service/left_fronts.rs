//! Fronts of users after the broker that has mounted them was killed.

use std::{fs, path::Path, process::Command, thread, time::Duration};

use floe_testkit::skip::{self, Need};

use super::users::{ForUsers, place_of, ready as can_serve_users};
use crate::support::{
    front,
    program::{Place, run, told, until},
};

const USER: u32 = 65_527;
const OTHER: u32 = 65_526;

/// An image that changed less than this ago is not kept.
const SETTLED: Duration = Duration::from_millis(200);

fn mount(users: &ForUsers, options: &str) -> Place {
    let place = place_of(USER);
    assert_eq!(told(&users.try_mount(USER, &place.path, &["-o", options])), (Some(0), String::new()));
    assert!(place.mount_line().contains(" erofs floe\\043"), "{}", place.mount_line());
    place
}

fn umount(users: &ForUsers, user: u32, place: &Path) -> (Option<i32>, String) {
    told(&run(users.as_user(user).arg("umount").arg(place)))
}

#[test]
fn a_user_unmounts_a_front_of_a_killed_broker() {
    if !can_serve_users() || !skip::ready(&[Need::Root]) || !front::ready() {
        return;
    }
    let mut users = ForUsers::start_with_cache("");
    thread::sleep(SETTLED);
    let (place, used) = (mount(&users, "front=kernel"), mount(&users, "front=kernel"));
    // A tree of root with the mode of a front's root directory, mounted by root.
    let (tree, image, of_root) = (users.path("tree"), users.path("of_root"), place_of(0));
    fs::create_dir(&tree).expect("ours");
    let made = run(Command::new("chown").arg(USER.to_string()).arg(&tree)).status.success()
        && run(Command::new("chmod").arg("700").arg(&tree)).status.success()
        && run(users.service.floe().arg("mkfs").arg(&image).arg(&tree)).status.success();
    assert!(made);
    let mounted = run(users.service.floe().args(["mount", "-d", "-o", "front=kernel"]).arg(&image).arg(&of_root.path));
    assert_eq!(mounted.status.code(), Some(0), "{mounted:?}");
    users.replace_broker_of_fronts();
    let read = |place: &Place| {
        let mut cat = Command::new("setpriv");
        let user = USER.to_string();
        run(cat.args(["--reuid", &user, "--regid", &user, "--clear-groups", "cat"]).arg(place.file("README.txt")))
    };
    assert!(!read(&place).stdout.is_empty(), "its process serves it");
    // Nobody else may, and the user may not unmount what others may enter.
    let (code, errors) = umount(&users, OTHER, &place.path);
    assert!(code == Some(1) && place.is_mounted(), "{errors}");
    let (code, errors) = umount(&users, USER, &of_root.path);
    assert!(code == Some(1) && of_root.is_mounted(), "{errors}");
    let mut sleeper = Command::new("setpriv")
        .args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--clear-groups", "sleep", "1000"])
        .current_dir(&used.path)
        .spawn();
    if let Ok(sleeper) = &mut sleeper {
        until("it is there", || umount(&users, USER, &used.path).1.contains("in use"));
        sleeper.kill().and_then(|()| sleeper.wait()).expect("it runs");
    }
    for place in [&place, &used] {
        until("the front is unmounted", || umount(&users, USER, &place.path).0 == Some(0));
        assert!(!place.is_mounted());
    }
    assert!(umount(&users, USER, &place.path).0 == Some(1), "it is gone");
    until("the process ends with its last mount", || users.service.domains().is_empty());
    // The next broker mounts for the user as before.
    let place = mount(&users, "front=kernel");
    assert_eq!(umount(&users, USER, &place.path), (Some(0), String::new()));
    assert_eq!(told(&run(users.service.floe().arg("umount").arg(&of_root.path))), (Some(0), String::new()));
}
