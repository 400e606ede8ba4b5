//! Mounts by the built program: through FUSE, behind the kernel's EROFS, with replays of recorded launches, as users and as root.
#![allow(clippy::disallowed_macros, reason = "tests may print")]

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod containerd;
mod containers;
mod control_sockets;
mod decoded_blocks;
mod devices;
mod drop_in_mounts;
mod exporter;
mod exporter_trust;
mod handover;
mod layer_caches;
mod misses;
mod mount_all;
mod mounting;
mod mounting_as_user;
mod named_paths;
mod names;
mod not_unmounted;
mod podman;
mod podman_fronts;
mod released;
mod sandbox;
mod service_manager;
mod status;
mod subdirectory;
mod swapped_directories;
mod too_few_processes;

/// Mounts of the service: `floe serve`.
mod service {
    mod adoption;
    mod ends;
    mod fronts;
    mod hostile;
    mod hostile_users;
    mod images;
    mod launches;
    mod neighbours;
    mod remote;
    mod restarts;
    mod rings;
    mod upgrades;
    mod user_adoption;
    mod user_fronts;
    mod users;
}

/// Mounts with the kernel's EROFS in front.
mod fronts {
    mod corpus;
    mod damage;
    mod front;
    mod kept;
    mod numbers;
    mod plain;
    mod trouble;
}

/// Replays of recorded launches: `floe mount -o profile=…`, `--learn`, and profiles in images.
mod replay {
    mod hostile;
    mod launched;
    mod learned;
    mod python;
}
