//! The layer file.

mod id;

pub use id::{LayerId, ParseIdError};
