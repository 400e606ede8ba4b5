//! The recipes of the root directories.

/// How a root directory is made: the packages of its lowest layer, and a line of `node.sh` for each layer above.
pub(super) struct Recipe {
    pub(super) name: &'static str,
    /// The variant of mmdebstrap.
    pub(super) variant: &'static str,
    /// The packages besides those of the variant, separated by commas.
    pub(super) packages: &'static str,
    pub(super) changes: &'static [&'static str],
}

/// What images of languages do behind an installation.
const CLEAN: &str = "change 'rm -rf /var/lib/apt/lists/* /usr/share/doc/* /var/log/apt /var/log/dpkg.log'";

/// Ten roots.
pub(super) const RECIPES: [Recipe; 10] = [
    Recipe {
        name: "minimal",
        variant: "essential",
        packages: "",
        changes: &["change 'rm -r /usr/share/doc /usr/share/man && mkdir /usr/share/doc && ln -s doc /usr/share/man'"],
    },
    Recipe {
        name: "busybox",
        variant: "essential",
        packages: "busybox-static",
        changes: &[
            "change 'mkdir /tools && cp -p /bin/busybox /tools && cd /tools && ./busybox --install .'",
            "change 'cd /tools && rm -r vi wget && ./busybox --install -s /usr/local/bin && mv ash /usr/local/bin/hard'",
        ],
    },
    Recipe {
        name: "python",
        variant: "minbase",
        packages: "ca-certificates",
        changes: &[
            "install 'python3 python3-venv'",
            "change 'python3 -m venv /srv/app && apt-get -q -y autopurge python3-venv'",
            CLEAN,
        ],
    },
    Recipe {
        name: "node",
        variant: "minbase",
        packages: "ca-certificates,tzdata",
        changes: &["install nodejs", "change 'apt-get -q -y purge tzdata && mv /usr/share/nodejs /srv/modules'", CLEAN],
    },
    Recipe { name: "java", variant: "minbase", packages: "", changes: &["install openjdk-17-jre-headless", CLEAN] },
    Recipe {
        name: "ruby",
        variant: "minbase",
        packages: "netbase",
        changes: &[
            "install ruby",
            "change 'apt-get -q -y purge netbase && touch /etc/services && chown -R games:games /srv /opt'",
            CLEAN,
        ],
    },
    Recipe {
        name: "php",
        variant: "minbase",
        packages: "",
        changes: &[
            "install 'php-cli php-xml'",
            "change 'apt-get -q -y autopurge php-xml && rm -r /etc/php/*/mods-available && echo > /etc/php/file'",
        ],
    },
    Recipe { name: "compilers", variant: "minbase", packages: "", changes: &["install build-essential", CLEAN] },
    Recipe {
        name: "postgresql",
        variant: "minbase",
        packages: "locales",
        changes: &[
            "install postgresql",
            "change 'localedef -i C -f UTF-8 /srv/locale || true; apt-get -q -y purge locales && mkdir -m 3770 /srv/data && chown postgres:postgres /srv/data'",
            CLEAN,
        ],
    },
    Recipe {
        name: "servers",
        variant: "minbase",
        packages: "sudo",
        changes: &[
            "install 'nginx-light openssh-server iputils-ping'",
            "change 'SUDO_FORCE_REMOVE=yes apt-get -q -y purge sudo && rm -r /var/www/html && rm /etc/motd && mkdir -m 1777 /etc/motd'",
            CLEAN,
        ],
    },
];
