//! What a broker writes down about a mount for the next broker.

use std::{ffi::OsString, io, os::unix::ffi::OsStringExt, path::PathBuf};

use floe_ipc::{Encoded, MESSAGE_BYTES_MAX, encoded, protocol::MountRequest};
use floe_keeper::{Place, PlaceNumbers};

use super::{
    messages::NegotiatedTerms,
    record_key::RecordKey,
    users::{Owner, User},
};
use crate::sealed_file::SealedFile;

/// The version of records. It is at their beginning.
const VERSION: u32 = 2;

/// The maximum length of a record, in bytes: a request, and two paths.
const BYTES_MAX: u64 = MESSAGE_BYTES_MAX as u64 + (16 << 10);

encoded! {
    /// A mount, for the next broker. The broker writes it to a sealed memory file with an [authentication code](RecordKey), and the
    /// domain, which cannot forge that, passes it on.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub(super) struct Record {
        /// The number of the mount.
        pub number: u64,
        /// What its client has requested.
        pub request: MountRequest,
        /// The directory of the mount.
        pub directory: Vec<u8>,
        /// Its place.
        pub place: PlaceNumbers,
        /// The path of its control socket.
        pub control: Vec<u8>,
        /// The device and inode numbers of that socket.
        pub control_inode: [u64; 2],
        /// Whether it is behind the kernel's EROFS.
        pub is_front: bool,
        /// The other user for whom it was made.
        pub user: Option<User>,
        /// The terms of the connection, if the broker has negotiated them.
        pub terms: Option<NegotiatedTerms>,
    }
}

impl Record {
    /// Writes it to a file.
    ///
    /// # Errors
    /// The kernel has no memory or no descriptors.
    pub(super) fn seal(&self, key: &RecordKey) -> io::Result<SealedFile> {
        let mut bytes = VERSION.to_bytes();
        self.write(&mut bytes);
        let code = key.code(&bytes);
        bytes.extend(code);
        SealedFile::new("floe-mount", &bytes)
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is damaged, of another version of Floe, or was not written with this key.
    pub(super) fn read_from(file: &SealedFile, key: &RecordKey) -> io::Result<Self> {
        let damaged = || io::Error::from(io::ErrorKind::InvalidData);
        let bytes = file.bytes(BYTES_MAX)?;
        let (mut rest, code) = bytes.split_last_chunk().ok_or_else(damaged)?;
        let is_authentic = key.has_code(rest, code);
        match u32::read(&mut rest) {
            Some(VERSION) if is_authentic => Self::from_bytes(rest).ok_or_else(damaged),
            Some(VERSION) | None => Err(damaged()),
            Some(_) => Err(io::Error::other("it is of another version of Floe")),
        }
    }

    /// For whom the mount was made.
    pub(super) fn owner(&self) -> Owner {
        self.user.map_or(Owner::Service, Owner::User)
    }

    /// The place of the mount.
    pub(super) fn place(&self) -> Place {
        Place::from_numbers(self.place, path(&self.directory))
    }
}

/// A path of a message.
pub(super) fn path(bytes: &[u8]) -> PathBuf {
    OsString::from_vec(bytes.to_vec()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_records_are_refused() {
        let record = Record {
            number: 7,
            request: MountRequest {
                image: b"/a\xff".to_vec(),
                devices: vec![b"/b".to_vec()],
                options: "ro".to_owned(),
                target: floe_ipc::protocol::MountTarget::Directory,
            },
            directory: b"/mnt".to_vec(),
            place: std::array::from_fn(|index| index as u64),
            control: b"/run/floe/0-7.sock".to_vec(),
            control_inode: [1, 2],
            is_front: true,
            user: Some(User { uid: 7, gid: 8, account: 9, namespace: 10 }),
            terms: Some(NegotiatedTerms { minor: 45, features: 1 }),
        };
        let [key, another] = [(); 2].map(|()| RecordKey::random().expect("random bytes"));
        let file = record.seal(&key).expect("memory");
        assert_eq!(Record::read_from(&file, &key).expect("a record"), record);
        assert!(Record::read_from(&file, &another).is_err(), "another service has written it");
        let bytes = file.bytes(BYTES_MAX).expect("readable");
        let read = |bytes: &[u8]| Record::read_from(&SealedFile::new("record", bytes).expect("memory"), &key);
        for place in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[place] ^= 1;
            assert!(read(&bytes).is_err(), "byte {place}");
        }
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(read(&[&bytes[..], &[0]].concat()).is_err());
        let of_another_version = read(&[&3_u32.to_le_bytes()[..], &bytes[4..]].concat());
        assert!(of_another_version.is_err_and(|error| error.to_string().contains("another version")));
        assert!(read(&vec![1; 1 << 20]).is_err());
    }
}
