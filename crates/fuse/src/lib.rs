//! The FUSE edge: negotiation, dispatch, replies, errno.
