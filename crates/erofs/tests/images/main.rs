//! EROFS images: handmade, reference and corrupt ones.

mod agreement;
mod check;
mod corpus;
mod corrupt;
mod dump;
mod handmade;
mod indexed;
mod made;
