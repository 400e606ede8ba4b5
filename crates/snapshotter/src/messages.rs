//! The messages of `containerd.services.snapshots.v1`, with the numbers of their fields.

use std::collections::HashMap;

/// The kinds of snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Kind {
    Unknown = 0,
    View = 1,
    Active = 2,
    Committed = 3,
}

/// `containerd.types.Mount`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Mount {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, tag = "2")]
    pub(crate) source: String,
    #[prost(string, tag = "3")]
    pub(crate) target: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) options: Vec<String>,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanoseconds: i32,
}

/// `google.protobuf.FieldMask`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FieldMask {
    #[prost(string, repeated, tag = "1")]
    pub(crate) paths: Vec<String>,
}

/// `google.protobuf.Empty`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct Empty {}

/// Describes a snapshot.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Info {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) parent: String,
    #[prost(enumeration = "Kind", tag = "3")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "4")]
    pub(crate) created_at: Option<Timestamp>,
    #[prost(message, optional, tag = "5")]
    pub(crate) updated_at: Option<Timestamp>,
    #[prost(map = "string, string", tag = "6")]
    pub(crate) labels: HashMap<String, String>,
}

/// The request of `Prepare` and `View`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PrepareRequest {
    #[prost(string, tag = "2")]
    pub(crate) key: String,
    #[prost(string, tag = "3")]
    pub(crate) parent: String,
    #[prost(map = "string, string", tag = "4")]
    pub(crate) labels: HashMap<String, String>,
}

/// The response of `Prepare`, `View` and `Mounts`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MountsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) mounts: Vec<Mount>,
}

/// The request of `Mounts`, `Remove`, `Stat` and `Usage`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KeyRequest {
    #[prost(string, tag = "2")]
    pub(crate) key: String,
}

/// The request of `Commit`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CommitRequest {
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) key: String,
    #[prost(map = "string, string", tag = "4")]
    pub(crate) labels: HashMap<String, String>,
    #[prost(string, tag = "5")]
    pub(crate) parent: String,
}

/// The request of `Update`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UpdateRequest {
    #[prost(message, optional, tag = "2")]
    pub(crate) info: Option<Info>,
    #[prost(message, optional, tag = "3")]
    pub(crate) update_mask: Option<FieldMask>,
}

/// The response of `Stat` and `Update`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InfoResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) info: Option<Info>,
}

/// The request of `List`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListRequest {
    #[prost(string, repeated, tag = "2")]
    pub(crate) filters: Vec<String>,
}

/// A part of the response of `List`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) info: Vec<Info>,
}

/// The response of `Usage`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct UsageResponse {
    #[prost(int64, tag = "1")]
    pub(crate) size: i64,
    #[prost(int64, tag = "2")]
    pub(crate) inodes: i64,
}
