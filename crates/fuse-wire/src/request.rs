//! Requests of the kernel, parsed.

use std::fmt;

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::{
    Opcode,
    abi::{
        AccessIn, BatchForgetIn, CreateIn, FlushIn, ForgetIn, ForgetOne, GetattrIn, GetxattrIn, InHeader, InitIn,
        InterruptIn, IoctlIn, LseekIn, OpenIn, ReadIn, ReleaseIn, UNIQUE_RESEND,
    },
};

/// A request of the kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Request<'bytes> {
    /// The header: the caller and the node.
    pub header: InHeader,
    /// The requested operation.
    pub operation: Operation<'bytes>,
}

/// An operation that the kernel requests.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Operation<'bytes> {
    /// Looks up a name in a directory.
    Lookup(&'bytes [u8]),
    /// Drops this many references to the node. Has no reply.
    Forget(u64),
    /// Drops references to several nodes. Has no reply.
    BatchForget(&'bytes [ForgetOne]),
    /// Reads the attributes.
    Getattr(GetattrIn),
    /// Reads the target of a symbolic link.
    Readlink,
    /// Opens a file.
    Open(OpenIn),
    /// Reads bytes of a file.
    Read(ReadIn),
    /// Reads the statistics of the file system.
    Statfs,
    /// Closes a file.
    Release(ReleaseIn),
    /// Reads an extended attribute: the size of the caller's buffer (0 asks for the size of the value), and the name.
    Getxattr(u32, &'bytes [u8]),
    /// Lists the names of all extended attributes: the size of the caller's buffer (0 asks for the size of the list).
    Listxattr(u32),
    /// A descriptor of an open file was closed.
    Flush(FlushIn),
    /// The first request of a connection.
    Init(InitIn),
    /// Opens a directory.
    Opendir(OpenIn),
    /// Lists the entries of a directory.
    Readdir(ReadIn),
    /// Lists the entries of a directory with their attributes.
    Readdirplus(ReadIn),
    /// Closes a directory.
    Releasedir(ReleaseIn),
    /// Checks whether the caller may access a node.
    Access(AccessIn),
    /// The caller of another request was interrupted.
    Interrupt(InterruptIn),
    /// The last request of a connection.
    Destroy,
    /// Creates and opens a file with this name in a directory.
    Create(&'bytes [u8]),
    /// Removes the directory with this name from a directory.
    Rmdir(&'bytes [u8]),
    /// Executes an `ioctl` with these input bytes.
    Ioctl(IoctlIn, &'bytes [u8]),
    /// Finds the next data or hole of a file.
    Lseek(LseekIn),
    /// Any other operation; most of them modify the file system.
    Other(Opcode),
}

/// Why bytes are not a valid request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// The header is incomplete, or its length differs from that of the request.
    Header,
    /// The structure of the opcode is incomplete, or a name is not terminated.
    Body(InHeader),
}

impl<'bytes> Request<'bytes> {
    /// Parses a request.
    ///
    /// # Errors
    /// The bytes break the protocol.
    pub fn parse(bytes: &'bytes [u8]) -> Result<Self, Malformed> {
        let (header, body) = InHeader::read_from_prefix(bytes).map_err(|_| Malformed::Header)?;
        if usize::try_from(header.len) != Ok(bytes.len()) {
            return Err(Malformed::Header);
        }
        // Extensions, which only requests that create something have, are at the end, in units of 8 bytes.
        let extensions = usize::from(header.total_extlen) * 8;
        let body = body.len().checked_sub(extensions).and_then(|len| body.get(..len));
        match body.and_then(|body| Operation::parse(Opcode(header.opcode), body)) {
            Some(operation) => Ok(Self { header, operation }),
            None => Err(Malformed::Body(header)),
        }
    }

    /// Whether the kernel has resent the request; a server may have received it before.
    pub fn is_resent(&self) -> bool {
        self.header.unique & UNIQUE_RESEND != 0
    }
}

impl<'bytes> Operation<'bytes> {
    fn parse(opcode: Opcode, body: &'bytes [u8]) -> Option<Self> {
        Some(match opcode {
            Opcode::LOOKUP => Self::Lookup(name(body)?),
            Opcode::FORGET => Self::Forget(leading::<ForgetIn>(body)?.0.nlookup),
            Opcode::BATCH_FORGET => {
                let (batch, rest) = leading::<BatchForgetIn>(body)?;
                let count = usize::try_from(batch.count).ok()?;
                Self::BatchForget(<[ForgetOne]>::ref_from_prefix_with_elems(rest, count).ok()?.0)
            }
            Opcode::GETATTR => Self::Getattr(leading(body)?.0),
            Opcode::READLINK => Self::Readlink,
            Opcode::OPEN => Self::Open(leading(body)?.0),
            Opcode::READ => Self::Read(leading(body)?.0),
            Opcode::STATFS => Self::Statfs,
            Opcode::RELEASE => Self::Release(leading(body)?.0),
            Opcode::GETXATTR => {
                let (sizes, rest) = leading::<GetxattrIn>(body)?;
                Self::Getxattr(sizes.size, name(rest)?)
            }
            Opcode::LISTXATTR => Self::Listxattr(leading::<GetxattrIn>(body)?.0.size),
            Opcode::FLUSH => Self::Flush(leading(body)?.0),
            Opcode::INIT => Self::Init(init(body)?),
            Opcode::OPENDIR => Self::Opendir(leading(body)?.0),
            Opcode::READDIR => Self::Readdir(leading(body)?.0),
            Opcode::READDIRPLUS => Self::Readdirplus(leading(body)?.0),
            Opcode::RELEASEDIR => Self::Releasedir(leading(body)?.0),
            Opcode::ACCESS => Self::Access(leading(body)?.0),
            Opcode::INTERRUPT => Self::Interrupt(leading(body)?.0),
            Opcode::DESTROY => Self::Destroy,
            Opcode::IOCTL => {
                let (ioctl, rest) = leading::<IoctlIn>(body)?;
                Self::Ioctl(ioctl, rest.get(..usize::try_from(ioctl.in_size).ok()?)?)
            }
            Opcode::CREATE => Self::Create(name(leading::<CreateIn>(body)?.1)?),
            Opcode::RMDIR => Self::Rmdir(name(body)?),
            Opcode::LSEEK => Self::Lseek(leading(body)?.0),
            opcode => Self::Other(opcode),
        })
    }
}

/// Splits off the structure at the beginning.
fn leading<T: FromBytes>(body: &[u8]) -> Option<(T, &[u8])> {
    T::read_from_prefix(body).ok()
}

/// Returns the name at the beginning, without its terminating zero byte.
fn name(body: &[u8]) -> Option<&[u8]> {
    body.split(|byte| *byte == 0).next().filter(|name| name.len() < body.len())
}

/// Parses INIT, which is shorter before version 7.36.
fn init(body: &[u8]) -> Option<InitIn> {
    const LEN_MIN: usize = 16;
    let mut init = InitIn::new_zeroed();
    let len = body.len().min(size_of::<InitIn>());
    init.as_mut_bytes().get_mut(..len)?.copy_from_slice(body.get(..len)?);
    (len >= LEN_MIN).then_some(init)
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => formatter.write_str("the kernel sent a request without a complete header"),
            Self::Body(header) => {
                write!(formatter, "the kernel sent a truncated request ({:?})", Opcode(header.opcode))
            }
        }
    }
}

impl std::error::Error for Malformed {}
