//! Mounts, made and unmade in a process of their own.
//!
//! Mounting a layer opens its device file, which our own daemon serves. A thread of the daemon that waits for the daemon
//! cannot be killed: the process would never be seen dead and no successor would start. So a child, the *mounter*, does
//! every operation that may touch our own mounts; it does not hold the FUSE descriptor, and a successor's answers reach
//! it like any other reader.
//!
//! * [`request`]: what the mounter is asked, as JSON lines.
//! * [`mounter`]: the child's loop, and the parent's handle.
//! * [`kernel`]: EROFS in its two forms, overlays, binds: the system calls.
//! * [`info`]: what is mounted.

pub(crate) mod info;
pub(crate) mod kernel;
pub(crate) mod mounter;
pub(crate) mod request;
