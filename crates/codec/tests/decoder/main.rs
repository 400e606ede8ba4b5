//! Tests of the decoder with every encoding.

mod encoder_sys;
mod hostile;
mod in_place;
mod length;
mod limit;
mod round_trip;
mod sample;
