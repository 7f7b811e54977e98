//! What opens a registry, wherever it is from.

use std::fmt;

/// What opens a registry.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Secret {
    /// User and password.
    Basic(String, String),
    /// A refresh token, with which the token server gives out others.
    Identity(String),
    /// A token for the registry itself.
    Bearer(String),
}

/// Not for logs.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Basic(user, _) => write!(f, "Basic({user:?}, …)"),
            Self::Identity(_) => f.write_str("Identity(…)"),
            Self::Bearer(_) => f.write_str("Bearer(…)"),
        }
    }
}
