//! The device files as a FUSE file system: one flat directory, one read-only file a layer, named by its id.
//!
//! It only translates. What is in memory or in the local cache is answered on the thread that read the request; what has
//! to come from the store is answered later, from the runtime, so that no number of misses keeps hits waiting.

use crate::reads::Reads;
use crate::table::{Device, ROOT};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    Request,
};
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;

/// Names and sizes never change while the connection lives.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);
/// Requests in flight that the kernel sends without waiting; its own default, 16, is less than one readahead of a big
/// file.
const MAX_BACKGROUND: u16 = 256;

pub(crate) struct Devices {
    reads: Arc<Reads>,
    runtime: Handle,
}

impl Devices {
    pub(crate) fn new(reads: Arc<Reads>, runtime: Handle) -> Self {
        Self { reads, runtime }
    }

    fn attributes(&self, node: u64) -> Option<FileAttr> {
        if node == ROOT {
            return Some(attributes(ROOT, 0, FileType::Directory, 0o500));
        }
        self.reads.table().by_node(node).map(|d| of_device(&d))
    }
}

fn of_device(device: &Device) -> FileAttr {
    attributes(device.node, device.length, FileType::RegularFile, 0o400)
}

fn attributes(node: u64, size: u64, kind: FileType, perm: u16) -> FileAttr {
    let time = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(node),
        size,
        blocks: size / 512,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_i32)
}

impl Filesystem for Devices {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without ASYNC_DIO the kernel keeps one direct read in flight, and a killed reader stays in D.
        let wanted = InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_MAX_PAGES | InitFlags::FUSE_PARALLEL_DIROPS;
        if let Err(missing) = config.add_capabilities(wanted) {
            tracing::warn!(?missing, "this kernel's FUSE lacks what fast reads need");
            let _ = config.add_capabilities(wanted - missing);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_congestion_threshold(MAX_BACKGROUND / 4 * 3);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let id = name.to_str().and_then(|n| n.parse().ok());
        let device = id.filter(|_| parent == INodeNo::ROOT).and_then(|id| self.reads.table().by_name(&id));
        match device {
            Some(device) => reply.entry(&FOR_EVER, &of_device(&device), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino.0) {
            Some(attr) => reply.attr(&FOR_EVER, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        const ACCESS_MODE: i32 = 3;
        if flags.0 & ACCESS_MODE != 0 {
            return reply.error(Errno::EROFS);
        }
        if self.reads.table().by_node(ino.0).is_none() {
            return reply.error(Errno::ENOENT);
        }
        match self.reads.table().opened(ino.0) {
            // Direct I/O: EROFS has a page cache of its own above, a second copy would be waste.
            Ok(()) => reply.opened(FileHandle(ino.0), FopenFlags::FOPEN_DIRECT_IO),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // What is fetched ahead runs there.
        let _context = self.runtime.enter();
        match self.reads.read_now(ino.0, offset, size) {
            Some(Ok(data)) => reply.data(&data),
            Some(Err(e)) => reply.error(errno(&e)),
            None => {
                let reads = Arc::clone(&self.reads);
                self.runtime.spawn(async move {
                    match reads.read(ino.0, offset, size).await {
                        Ok(data) => reply.data(&data),
                        Err(e) => reply.error(errno(&e)),
                    }
                });
            }
        }
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if let Err(error) = self.reads.released(ino.0) {
            // Counted too many from now on: a layer stays pinned, which is the safe side.
            tracing::error!(%error, "cannot write down that a device was released");
        }
        reply.ok();
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if ino != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        for (i, device) in self.reads.table().devices().iter().enumerate().skip(skip) {
            let name = device.entry.layer.to_string();
            if reply.add(INodeNo(device.node), i as u64 + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, 4096, 64, 4096);
    }
}
