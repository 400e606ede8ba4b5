//! The SquashFS 4.0 format: reading.
