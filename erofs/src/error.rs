//! Why metadata could not be read.

/// Why metadata could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No EROFS superblock where it should be.
    #[error("not EROFS metadata: {0}")]
    NotErofs(&'static str),
    /// An EROFS image of a shape that Lamina does not write.
    #[error("an EROFS image that Lamina cannot read: {0}")]
    Unsupported(&'static str),
    /// Something is broken.
    #[error("broken EROFS metadata: {0}")]
    Corrupt(&'static str),
    /// The inode is not of the type that was asked about.
    #[error("the inode is not a {0}")]
    WrongType(&'static str),
}
