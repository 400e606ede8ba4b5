//! The decoder, over every encoding.

mod encoder_sys;
mod round_trip;
mod sample;
