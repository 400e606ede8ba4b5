//! Tests of the decoder with every encoding.

mod encoder_sys;
mod hostile;
mod limit;
mod round_trip;
mod sample;
mod whole_blocks;
