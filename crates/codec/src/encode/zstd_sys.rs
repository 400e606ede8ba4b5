//! libzstd's table of compression parameters, which `zstd-safe` does not wrap.

use zstd_safe::{CParameter, zstd_sys::ZSTD_getCParams};

/// libzstd's parameters of a level for inputs of this length in bytes, except the window.
pub(super) fn settings(level: u8, input_bytes: u64) -> [CParameter; 6] {
    // SAFETY: the function takes numbers, any of which are valid, and reads a constant table.
    let settings = unsafe { ZSTD_getCParams(i32::from(level), input_bytes, 0) };
    [
        CParameter::HashLog(settings.hashLog),
        CParameter::ChainLog(settings.chainLog),
        CParameter::SearchLog(settings.searchLog),
        CParameter::MinMatch(settings.minMatch),
        CParameter::TargetLength(settings.targetLength),
        CParameter::Strategy(settings.strategy),
    ]
}
