//! What can be typed.

use clap::{Args, Parser, Subcommand};
use converter::ChunkSize;
use converter::options::LEVEL;
use std::path::PathBuf;
use std::time::Duration;

/// How `lamina mount` is typed.
pub(crate) const MOUNT_USAGE: &str = "lamina mount [OPTIONS] <REF>... <DIR>";

/// Containers from images that are not on the node.
///
/// REF names a layer or a stack of layers: image:NAME, tag:KIND/NAME:VERSION, layer:ID, sha256:HEX (a chain id, a
/// manifest's or layer's digest, a diff id), file:PATH (a layer file; for inspect, verify and export). Without a prefix,
/// what starts with / or . is a file, 64 hex digits are a layer, and so are the first 12 or more of them where no other
/// layer begins so; base/…, workspace/… and toolkit/… are tags, and anything else is an image's name in its short or
/// long form.
///
/// Exit status: 0 done; 1 it failed; 2 wrong usage; 3 the input was refused, and nothing was written; 130, 143 and the like
/// (128 and its number): a signal ended it, and nothing half done is left.
#[derive(Debug, Parser)]
#[command(name = "lamina", version, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Lamina {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Understood by every subcommand.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Configuration file [default: /etc/lamina/config.toml if there is one]
    #[arg(long, global = true, value_name = "FILE", env = "LAMINA_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Store for convert, inspect, verify, export, pull and store, over the configuration's: file:///DIRECTORY, s3://BUCKET/PREFIX,
    /// 3fs:///MOUNT/DIR, or (to read) https://HOST/PATH [default: file:///var/lib/lamina/store]. Not for the others: they ask
    /// laminad, which has its own --store
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Results as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// More logs
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
    /// Errors only: no progress, and no lines of what was done. What was asked for is printed all the same: lists, status, JSON
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Turn an image, a tar file or a directory into layers in the store
    ///
    /// The store is made by the first conversion. Layers of an image that it has already are not made again; nothing
    /// is seen in it before the whole source is converted, and what comes to a revoked layer is refused. Until then the work lies in TMPDIR, or /var/tmp: room for the
    /// layers that come out, and for the files of the largest. What was interrupted goes on at the layer where it was when
    /// it is begun again (a tar or directory is one layer), and conversions that need the same layer at once make it once.
    ///
    /// A registry is asked with the credentials that `docker login` or `podman login` left. Its mirrors, its certificate
    /// authority and plain HTTP are set under [registry."HOST"] in the configuration; HTTPS_PROXY and NO_PROXY are obeyed.
    Convert(Convert),
    /// Re-read every byte of a stack's layers and check it
    Verify(Verify),
    /// Show what a reference stands for
    Inspect(Inspect),
    /// Write what a stack shows to a flat EROFS image, a tar or a directory
    ///
    /// Every byte is verified on the way, and no daemon is needed. A file or directory gets its name when it is complete.
    /// `lamina export REF | lamina convert tar:- --tag TAG` makes one layer of a stack. A single layer (layer:ID,
    /// file:PATH) as a tar keeps what it hides of the layers below, as OCI whiteouts.
    Export(Export),
    /// Make an image of the store known to containerd, its layers lazy
    Pull(Pull),
    /// Mount layers, stacked left (bottom) to right (top), through laminad
    #[command(override_usage = MOUNT_USAGE)]
    Mount(Mount),
    /// Undo mount
    #[command(visible_alias = "unmount")]
    Umount(Umount),
    /// Show what the daemon does; exit status 1 when there is none
    Status,
    /// Look after what this node has cached, through laminad
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Show each wait for the store as it happens, with the file that it was for
    ///
    /// One line for reads that waited for the store, and for chunks that were fetched ahead of reads (readahead: reads made
    /// them likely; prefetch: a profile named them; fill: lamina cache warm, pin or verify did), when they are done: seconds
    /// since the trace began, bytes, milliseconds, layer, and the path in the layer. Ends at Ctrl-C, after --for, or with
    /// laminad, with a summary: the files that readers waited for, and totals. With --json one object a line, the summary
    /// last. To see what a start waits for, begin the trace first.
    Trace(Trace),
    /// Look into the store, remove from it, clean it up
    #[command(subcommand)]
    Store(StoreCommand),
    /// Named in the documentation, not built yet
    #[command(external_subcommand)]
    Other(Vec<String>),
}

/// `lamina cache`
#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// Sum up: how full it is, what is read from where, what is pinned, and what keeps it from caching, if anything does
    Stat,
    /// List the layers that this node knows: how much of each is cached, whether it is pinned, whether it is in use
    Ls,
    /// Fetch every chunk of a stack's layers that is not cached, or those that starts read
    ///
    /// Behind what readers wait for. What was interrupted (Ctrl-C) goes on where it was when it is begun again.
    Warm {
        /// What to warm, as lamina mount takes it (see lamina --help)
        #[arg(value_name = "REF")]
        reference: String,
        /// Only what the layers' profiles name, in the order in which starts read it: the store is asked for other nodes'
        /// profiles first. It fails where no layer has one, for nothing of REF was started yet
        #[arg(long)]
        profile: bool,
    },
    /// Warm a stack's layers and keep all of their chunks, whatever else is read, also over a loss of power
    ///
    /// All pins together may have 2/5 of [cache] size. Done again after the REF got other layers, the pin moves to these.
    Pin {
        /// What to pin, as lamina mount takes it (see lamina --help)
        #[arg(value_name = "REF")]
        reference: String,
    },
    /// Take a pin away; layers that another pinned REF has stay pinned
    Unpin {
        /// What was pinned, as lamina cache ls names it
        #[arg(value_name = "REF")]
        reference: String,
    },
    /// Drop what is cached of a stack's layers and not pinned
    Evict {
        /// What to drop, as lamina mount takes it (see lamina --help)
        #[arg(value_name = "REF")]
        reference: String,
    },
    /// Read all that is cached, drop what is wrong, and fetch again what of it is pinned or in use
    ///
    /// Exit status 1 when something that must be here could not be fetched again.
    Verify,
    /// Apply [cache] size and reserve now; drop heads of layers that nobody needs, and files that belong to nothing
    Gc,
}

/// `lamina store`
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// List the names of images, bases, workspaces and toolkits, each as a REF
    Ls(StoreLs),
    /// Sum up what the layers take, and how much of it is chunks that occur more than once
    Du,
    /// Remove names of images and tags; their layers go with a later gc
    ///
    /// Nodes that have an image keep it: what they use is held by their leases. No node can look the name up any more; a pull
    /// of the original image is still served lazily by its chain ids until gc has taken its layers.
    Rm(StoreRm),
    /// Forbid new mounts of a layer, at once and on every node
    ///
    /// For a layer that must not be used: it has a secret or a hole in it. What names it counts as not converted: nodes unpack
    /// the image, and a conversion makes it anew, or is refused where that gives the same layer. What is mounted stays mounted,
    /// and running containers do not notice. Nodes look at the list at most five seconds after it changed, when they next
    /// resolve something. `lamina store ls --revoked` lists what is revoked.
    Revoke(StoreRevoke),
    /// Take a revocation back: the layer may be mounted again
    Unrevoke(StoreUnrevoke),
    /// Tell what nothing needs; with --delete, delete it after a grace
    ///
    /// Needed is what names of images and tags reach, and what nodes and conversions hold in leases. An object that nothing
    /// needs is marked by the first run, and deleted by the first one after the grace, unless it was needed in between. So run
    /// it regularly (daily: docs/operations.md has a timer). Conversions and nodes may go on meanwhile; a run that was killed
    /// is made up for by the next.
    Gc(StoreGc),
    /// Look at everything in the store and say what is wrong; exit status 1 if anything is
    ///
    /// Every layer's index is read and checked, every name and reference is followed. What nothing needs, and what killed
    /// writers left, is told and is no fault.
    Fsck(StoreFsck),
    /// Named in the documentation, not built yet
    #[command(external_subcommand)]
    Other(Vec<String>),
}

/// `lamina store ls`
#[derive(Debug, Args)]
pub(crate) struct StoreLs {
    /// Only names that begin with this, in their long form: image:docker.io/library/, tag:toolkit/; the kind may be left
    /// out: docker.io/library/, toolkit
    #[arg(value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,
    /// With platforms, number of layers, bytes and digests
    #[arg(short, long)]
    pub(crate) long: bool,
    /// List layers instead, each as a REF with its bytes
    #[arg(long, conflicts_with = "long")]
    pub(crate) layers: bool,
    /// List revoked layers instead, each as a REF, and why
    #[arg(long, conflicts_with_all = ["long", "layers"])]
    pub(crate) revoked: bool,
}

/// `lamina store rm`
#[derive(Debug, Args)]
pub(crate) struct StoreRm {
    /// Names of images, KIND/NAME:VERSION
    #[arg(value_name = "REF", required = true)]
    pub(crate) references: Vec<String>,
}

/// `lamina store revoke`
#[derive(Debug, Args)]
pub(crate) struct StoreRevoke {
    /// The layer's id, or at least the first 12 digits of it
    #[arg(value_name = "LAYER")]
    pub(crate) layer: String,
    /// Why, for those who will ask
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,
}

/// `lamina store unrevoke`
#[derive(Debug, Args)]
pub(crate) struct StoreUnrevoke {
    /// The layer's id, or at least the first 12 digits of it
    #[arg(value_name = "LAYER")]
    pub(crate) layer: String,
}

/// `lamina store gc`
#[derive(Debug, Args)]
pub(crate) struct StoreGc {
    /// Mark and delete; without, it is only told what would be done
    #[arg(long)]
    pub(crate) delete: bool,
    /// How long nothing must have needed an object before it is deleted
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = crate::quantity::time_of)]
    pub(crate) grace: Duration,
    /// How long to wait for nodes to say what they have just begun to use, before the first deletion
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::quantity::time_of)]
    pub(crate) settle: Duration,
}

/// `lamina store fsck`
#[derive(Debug, Args)]
pub(crate) struct StoreFsck {
    /// Read every byte of every layer
    #[arg(long)]
    pub(crate) deep: bool,
    /// Remove references to layers that are missing or damaged, so that nodes unpack those images, and what killed writers
    /// left a day ago. Layers and names stay
    #[arg(long)]
    pub(crate) repair: bool,
}

/// [`ChunkSize::DEFAULT`] as it is typed.
const CHUNK_SIZE: &str = "512KiB";

/// `lamina convert`
#[derive(Debug, Args)]
pub(crate) struct Convert {
    /// docker://IMAGE (a registry), oci:DIR[:REF], oci-archive:FILE[:REF], docker-archive:FILE[:REF], tar:FILE (- is the
    /// standard input) or dir:PATH. REF is which of its images
    pub(crate) source: String,
    /// Name what comes out as a base, workspace or toolkit: base/NAME:VERSION, workspace/… or toolkit/…, for lamina mount and
    /// for labels of containers. The only name of a tar's or directory's layer; an image gets it besides its own
    #[arg(long, value_name = "KIND/NAME:VERSION")]
    pub(crate) tag: Option<String>,
    /// Name of an image in the store, such as registry.example.com/app:1 [default: the source's own full name, if it
    /// has one; many layouts have only a tag]
    #[arg(long, value_name = "IMAGE")]
    pub(crate) name: Option<String>,
    /// Platform such as linux/arm64, or all [default: this machine's]
    #[arg(long, value_name = "P")]
    pub(crate) platform: Option<String>,
    /// Chunk size that is aimed at: a multiple of 4 KiB, up to 4MiB
    #[arg(long, value_name = "SIZE", default_value = CHUNK_SIZE, value_parser = crate::quantity::chunk_size_of)]
    pub(crate) chunk_size: ChunkSize,
    /// zstd level
    #[arg(long, value_name = "N", default_value_t = LEVEL, value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) level: i32,
    /// Convert again what the store has already, or an interrupted conversion left. A collapsed stack stays where the layers
    /// come out the same, and goes with them else, unless --collapse is given
    #[arg(long)]
    pub(crate) again: bool,
    /// Make consecutive layers of an image one, while their layer files are at most SIZE together (3GiB, 500 MB): a second
    /// stack beside the first, of fewer mounts, with the same files. What has a collapsed stack already (a base image that
    /// was converted so) is kept below it, and shared, unless --again is given
    #[arg(long, value_name = "SIZE", value_parser = crate::quantity::size_of)]
    pub(crate) collapse: Option<u64>,
    /// Threads that compress [default: one per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) jobs: Option<u16>,
    /// Lay out together, and first, what starts read: a list of paths, one a line, such as `lamina inspect IMAGE --profile` gives
    /// once the image has run. Of layers that are not converted yet; with --again, of all
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Push the image to a registry: an index of the original, untouched and first, and of one with the converted layers,
    /// which containerd 2.3 and later runs without lamina
    #[arg(long, value_name = "IMAGE")]
    pub(crate) push: Option<String>,
    /// Not built yet
    #[arg(long, hide = true)]
    pub(crate) output: Option<PathBuf>,
}

/// `lamina verify`
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// What to check: a reference (file:PATH is a layer file), or a source as convert takes it, whose tree is then compared
    /// with the original too
    #[arg(value_name = "SOURCE|REF")]
    pub(crate) what: String,
    /// For a tar or a directory: the tag under which it was converted
    #[arg(long, value_name = "KIND/NAME:VERSION")]
    pub(crate) tag: Option<String>,
    /// Platform such as linux/arm64, or all [default: this machine's]
    #[arg(long, value_name = "P")]
    pub(crate) platform: Option<String>,
}

/// `lamina inspect`
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// What to show: an image's name, KIND/NAME:VERSION, a layer's id and more (see lamina --help); file:PATH is a
    /// layer file
    #[arg(value_name = "REF")]
    pub(crate) reference: String,
    /// List every entry of each layer
    #[arg(long)]
    pub(crate) tree: bool,
    /// List every chunk of each layer
    #[arg(long)]
    pub(crate) chunks: bool,
    /// List the files that starts on the nodes read, in their order, and nothing else: a list for convert --profile
    #[arg(long, conflicts_with_all = ["tree", "chunks"])]
    pub(crate) profile: bool,
}

/// `lamina export`
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// What to export: an image's name, KIND/NAME:VERSION, a layer's id and more (see lamina --help); file:PATH is a
    /// layer file
    #[arg(value_name = "REF")]
    pub(crate) reference: String,
    /// Where to: a file, or a directory that is new or empty; - is the standard output, for a tar [default: -]
    #[arg(short, long, value_name = "FILE|DIR")]
    pub(crate) output: Option<PathBuf>,
    /// erofs: an uncompressed image for mount -o loop; tar: a PAX tar; dir: a directory, needs root [default: dir for a
    /// directory and what ends in a slash, tar for - and what ends in .tar, else erofs]
    #[arg(long, value_name = "FORMAT", value_parser = ["erofs", "tar", "dir"])]
    pub(crate) format: Option<String>,
}

/// `lamina pull`
#[derive(Debug, Args)]
pub(crate) struct Pull {
    /// The image's name in the store, as convert was given it or found it in the source
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
    /// containerd's socket
    #[arg(long, value_name = "SOCK", default_value = containerd::SOCKET)]
    pub(crate) address: PathBuf,
    /// containerd's namespace
    #[arg(long, value_name = "NS", default_value = "default")]
    pub(crate) namespace: String,
    /// Name of the snapshotter in containerd's configuration
    #[arg(long, value_name = "NAME", default_value = "lamina")]
    pub(crate) snapshotter: String,
}

/// `lamina mount`
#[derive(Debug, Args)]
pub(crate) struct Mount {
    /// What to stack, bottom first (names as lamina --help lists them), then the directory to mount on
    // Counted by the command: a least number would be one of each run between options.
    #[arg(required = true, num_args = 1.., value_name = "REF|DIR")]
    pub(crate) references_and_target: Vec<String>,
    /// Take writes, in UPPER/fs (with UPPER/work for overlayfs)
    #[arg(long, value_name = "UPPER")]
    pub(crate) rw: Option<PathBuf>,
    /// What serves it: auto, kernel (EROFS) or fuse (not built yet). In which form laminad gives layers to the kernel, as a
    /// file or as loop devices, is its own choice ([daemon] face); mount and status say which it is
    #[arg(long, value_name = "FACE", default_value = "auto", value_parser = face)]
    pub(crate) face: String,
}

/// `lamina trace`
#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// Only this stack's layers [default: all that are read]
    #[arg(value_name = "REF", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) reference: Option<String>,
    /// End after so long, such as 30s or 5m
    #[arg(long = "for", value_name = "DURATION", value_parser = crate::quantity::time_of)]
    pub(crate) duration: Option<Duration>,
    /// Also what memory and the local cache answered
    #[arg(long)]
    pub(crate) all: bool,
}

/// `lamina umount`
#[derive(Debug, Args)]
pub(crate) struct Umount {
    /// Where it was mounted
    #[arg(value_name = "DIR")]
    pub(crate) target: PathBuf,
}

/// What `--face` takes. The forms that `[daemon] face` knows are no faces of one mount: that is said.
fn face(text: &str) -> Result<String, String> {
    match text {
        "auto" | "kernel" | "fuse" => Ok(text.to_owned()),
        "file" | "loop" => Err(format!(
            "{text} is how laminad gives layers to the kernel, to all mounts alike: [daemon] face = \"{text}\" in its configuration; \
             here auto and kernel are possible"
        )),
        _ => Err("auto and kernel are possible (fuse is not built yet)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Command, String> {
        let words = ["lamina"].iter().chain(words);
        Lamina::try_parse_from(words).map(|parsed| parsed.command).map_err(|error| error.to_string())
    }

    #[test]
    fn options_may_stand_between_what_is_mounted_and_where() {
        for words in [
            &["mount", "base/a:1", "toolkit/b:1", "--face", "kernel", "/mnt"][..],
            &["mount", "--face", "kernel", "base/a:1", "toolkit/b:1", "/mnt"],
            &["mount", "base/a:1", "--face", "kernel", "toolkit/b:1", "/mnt"],
            &["mount", "base/a:1", "toolkit/b:1", "/mnt", "--face", "kernel"],
        ] {
            let Ok(Command::Mount(mount)) = parse(words) else { panic!("{words:?}") };
            assert_eq!(mount.references_and_target, ["base/a:1", "toolkit/b:1", "/mnt"]);
            assert_eq!(mount.face, "kernel");
        }
        let error = parse(&["mount", "base/a:1", "/mnt", "--face", "loop"]).unwrap_err();
        assert!(error.contains("[daemon] face = \"loop\""), "{error}");
    }

    #[test]
    fn a_chunk_size_has_units_as_other_sizes_have() {
        let size = |words: &[&str]| match parse(words) {
            Ok(Command::Convert(convert)) => convert.chunk_size.bytes(),
            other => panic!("{other:?}"),
        };
        assert_eq!(size(&["convert", "dir:/x"]), ChunkSize::DEFAULT.bytes());
        for text in ["1MiB", "1024KiB", "1048576"] {
            assert_eq!(size(&["convert", "dir:/x", "--chunk-size", text]), 1 << 20);
        }
        for bad in ["1MB", "8MiB", "0", "x"] {
            parse(&["convert", "dir:/x", "--chunk-size", bad]).unwrap_err();
        }
    }

    #[test]
    fn the_help_names_the_sources_that_the_error_names() {
        let error = "nothing".parse::<converter::Source>().unwrap_err().to_string();
        let help = Convert::augment_args(clap::Command::new("convert")).render_long_help().to_string();
        for source in [
            "docker://IMAGE",
            "oci:DIR[:REF]",
            "oci-archive:FILE[:REF]",
            "docker-archive:FILE[:REF]",
            "tar:FILE",
            "dir:PATH",
        ] {
            assert!(error.contains(source) && help.contains(source), "{source}: {error} {help}");
        }
    }
}
