//! In-memory and faulty sources, and generated trees, for tests only.
