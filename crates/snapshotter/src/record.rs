//! The record of a snapshot, and its form on disk.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    labels::Labels,
    messages::{Info, Kind, Timestamp},
};

/// The first word of a record, and the version of its form.
const MAGIC: &str = "floe-snapshot";
const VERSION: u32 = 1;

/// The record of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The number of its directory.
    pub(crate) id: u64,
    /// The name; of a snapshot that is not committed, its key.
    pub(crate) name: String,
    pub(crate) parent: Option<String>,
    pub(crate) state: State,
    pub(crate) content: Content,
    pub(crate) labels: Labels,
    pub(crate) created: Time,
    pub(crate) updated: Time,
    /// What it takes on disk, once that is final.
    pub(crate) usage: Usage,
    /// If there is also a converted image of the layer: snapshots with a higher number than this use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) converted: Option<u64>,
}

/// The stage of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum State {
    /// Read-only.
    View,
    /// Written to by a container or an unpacker.
    Active,
    /// Complete, a parent of others.
    Committed,
}

/// Where the files of a snapshot are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Content {
    /// In its directory.
    Directory,
    /// In an image in its directory.
    Blob,
    /// In an image at this URL.
    Remote(String),
    /// In an image that the snapshotter has made of the directory, which is removed.
    Converted,
}

/// A point in time, since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Time {
    seconds: i64,
    nanoseconds: i32,
}

/// What a snapshot takes on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

impl Record {
    /// The form on disk: a line with version and digest, and JSON.
    pub(crate) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let json = serde_json::to_string(self)?;
        Ok(format!("{MAGIC} {VERSION} {}\n{json}\n", digest(json.as_bytes())).into_bytes())
    }

    /// Parses a record.
    ///
    /// # Errors
    /// The reason why the bytes are none.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not text")?;
        let (head, json) = text.split_once('\n').ok_or("it is cut off")?;
        let json = json.strip_suffix('\n').ok_or("it is cut off")?;
        let mut words = head.split(' ');
        if words.next() != Some(MAGIC) {
            return Err("it is something else".to_owned());
        }
        let version = words.next().unwrap_or_default();
        if version != VERSION.to_string() {
            return Err(format!("it has version {version:.16}, and this program supports version {VERSION}"));
        }
        if words.next() != Some(&digest(json.as_bytes())) {
            return Err("its digest is wrong".to_owned());
        }
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    /// The description for containerd.
    pub(crate) fn info(&self) -> Info {
        let kind = match self.state {
            State::View => Kind::View,
            State::Active => Kind::Active,
            State::Committed => Kind::Committed,
        };
        Info {
            name: self.name.clone(),
            parent: self.parent.clone().unwrap_or_default(),
            kind: kind.into(),
            created_at: Some(self.created.timestamp()),
            updated_at: Some(self.updated.timestamp()),
            labels: self.labels.clone().into_iter().collect(),
        }
    }

    /// Whether the snapshot with this number, whose owners may be mapped to a user namespace, uses the converted image of this layer.
    /// Before Linux 6.12, owners of directories can be mapped, but not those of images.
    pub(crate) fn has_image_for(&self, snapshot: u64, is_mapped: bool) -> bool {
        match (&self.content, self.converted) {
            (Content::Converted, _) => true,
            (Content::Directory, Some(from)) => snapshot > from && !is_mapped,
            _ => false,
        }
    }

    pub(crate) fn is_committed(&self) -> bool {
        self.state == State::Committed
    }
}

impl Time {
    pub(crate) fn now() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        Self { seconds, nanoseconds: i32::try_from(now.subsec_nanos()).unwrap_or_default() }
    }

    fn timestamp(self) -> Timestamp {
        Timestamp { seconds: self.seconds, nanoseconds: self.nanoseconds }
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A committed snapshot.
    pub(crate) fn record(id: u64, name: &str, parent: Option<&str>) -> Record {
        Record {
            id,
            name: name.to_owned(),
            parent: parent.map(str::to_owned),
            state: State::Committed,
            content: Content::Directory,
            labels: Labels::from([("a".to_owned(), "line\nbreak".to_owned())]),
            created: Time::now(),
            updated: Time::now(),
            usage: Usage { bytes: 1, inodes: 2 },
            converted: None,
        }
    }

    #[test]
    fn records_survive_the_disk() {
        let record = record(7, "name", Some("parent"));
        let bytes = record.to_bytes().expect("representable");
        assert_eq!(Record::parse(&bytes), Ok(record));
    }

    #[test]
    fn converted_images_are_for_later_snapshots() {
        for (content, converted, snapshot, is_mapped, expected) in [
            (Content::Directory, None, 9, false, false),
            (Content::Directory, Some(7), 6, false, false),
            (Content::Directory, Some(7), 8, false, true),
            (Content::Directory, Some(7), 8, true, false),
            (Content::Converted, Some(7), 6, true, true),
            (Content::Blob, Some(7), 8, false, false),
        ] {
            let layer = Record { content, converted, ..record(1, "name", None) };
            assert_eq!(layer.has_image_for(snapshot, is_mapped), expected, "{layer:?} {snapshot} {is_mapped}");
        }
    }

    #[test]
    fn any_damage_is_noticed() {
        let bytes = record(7, "name", None).to_bytes().expect("representable");
        for len in 0..bytes.len() {
            assert!(Record::parse(&bytes[..len]).is_err(), "cut at {len}");
        }
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1;
            assert!(Record::parse(&damaged).is_err(), "byte {place}");
        }
        let newer = String::from_utf8(bytes).expect("text").replacen(" 1 ", " 2 ", 1);
        assert!(Record::parse(newer.as_bytes()).expect_err("refused").contains("version 2"));
    }
}
