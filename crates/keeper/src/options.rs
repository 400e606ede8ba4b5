//! The options of a mount that the kernel is told.

/// The options of a mount that the kernel is told. They are the same whichever process mounts.
#[derive(Clone, Debug)]
pub struct KernelOptions {
    /// The source in the mount table: the path of the image.
    pub source: String,
    /// The subtype in the mount table: the type is `fuse.` and this, or `fuse` if it is empty.
    pub subtype: String,
    /// The users who may enter the mount. `None`: all users for a mount of root, as with a mount of the kernel, else only its
    /// owner.
    pub access: Option<Access>,
    /// Whether the kernel checks the modes and owners in the image. If not, all users who may enter may read everything.
    pub checks_permissions: bool,
    /// Whether the kernel applies the access control lists of the image; `None`: if all users may enter. To apply them, the
    /// kernel requests the list of each file that a program other than root's opens.
    pub acl: Option<bool>,
    /// The flags of the mount.
    pub flags: KernelFlags,
    /// Whether the mount is unmounted when this process dies. Needs fusermount3, or a keeper for a front.
    pub auto_unmount: bool,
    /// The kernel's readahead in bytes; `None` for its default. Setting it needs root.
    pub readahead_bytes: Option<u32>,
    /// Further options that are passed to the kernel unchanged, such as `context=…`.
    pub others: Vec<String>,
}

/// The users who may enter a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The user who mounted it.
    Owner,
    /// That user and root. The kernel admits all users, and the FUSE edge refuses other users' requests. The kernel therefore
    /// caches no names and attributes, because it would show them to other users.
    OwnerAndRoot,
    /// Every user.
    All,
}

/// The flags of a mount, as opposed to the file system. A mount is always read-only. By default an image grants no
/// privileges: set-user-id bits and device files have no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelFlags {
    /// Set-user-id and set-group-id bits have no effect.
    pub nosuid: bool,
    /// Device files cannot be opened.
    pub nodev: bool,
    /// Programs cannot be run.
    pub noexec: bool,
    /// Symbolic links are not followed.
    pub nosymfollow: bool,
}

impl Default for KernelFlags {
    fn default() -> Self {
        Self { nosuid: true, nodev: true, noexec: false, nosymfollow: false }
    }
}

impl Default for KernelOptions {
    fn default() -> Self {
        Self {
            source: "floe".to_owned(),
            subtype: "floe".to_owned(),
            access: None,
            checks_permissions: true,
            acl: None,
            flags: KernelFlags::default(),
            auto_unmount: false,
            readahead_bytes: None,
            others: Vec::new(),
        }
    }
}

impl KernelOptions {
    /// The users who may enter; never the default.
    pub fn access(&self) -> Access {
        let is_root = || rustix::process::geteuid().is_root();
        self.access.unwrap_or_else(|| if is_root() { Access::All } else { Access::Owner })
    }

    /// Whether the kernel applies the access control lists of the image.
    pub fn applies_acls(&self) -> bool {
        self.acl.unwrap_or_else(|| self.access() == Access::All)
    }
}
