//! What a caller is told to mount: the shapes of containerd's own overlay snapshotter, which every version of every
//! client can mount, a bind mount or one overlay.
//!
//! | snapshot | mount |
//! |---|---|
//! | active or view of nothing | bind of its own directory, rw or ro |
//! | view of one lower directory | bind of that one, ro |
//! | view of more | overlay without an upper directory |
//! | active of something | overlay |
//!
//! Which options the overlays carry is found out once, by mounting some (see [`overlay::probe`]).

use std::path::{Path, PathBuf};

/// A mount, as containerd's `types.Mount` says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) kind: &'static str,
    pub(crate) source: String,
    pub(crate) options: Vec<String>,
}

/// Where a snapshot writes.
pub(crate) struct Own {
    pub(crate) fs: PathBuf,
    pub(crate) work: PathBuf,
}

/// The mount of a snapshot over `lowers`, top to bottom. `own` is None for a view of something.
pub(crate) fn of(own: Option<&Own>, writable: bool, lowers: &[PathBuf], overlay: &[String]) -> Mount {
    match (lowers, own) {
        ([], Some(own)) => bind(&own.fs, writable),
        ([single], _) if !writable => bind(single, false),
        _ => {
            let mut options = Vec::new();
            if let Some(own) = own.filter(|_| writable) {
                options.push(format!("workdir={}", own.work.display()));
                options.push(format!("upperdir={}", own.fs.display()));
            }
            let lowers: Vec<_> = lowers.iter().map(|path| path.display().to_string()).collect();
            options.push(format!("lowerdir={}", lowers.join(":")));
            options.extend_from_slice(overlay);
            Mount { kind: "overlay", source: "overlay".into(), options }
        }
    }
}

fn bind(path: &Path, writable: bool) -> Mount {
    let access = if writable { "rw" } else { "ro" };
    Mount { kind: "bind", source: path.display().to_string(), options: vec![access.into(), "rbind".into()] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Own {
        Own { fs: "/r/s/9/fs".into(), work: "/r/s/9/work".into() }
    }

    #[test]
    fn shapes_are_those_of_containerd_s_overlay_snapshotter() {
        let option = ["xino=on".to_owned()];
        let (one, two) = (vec![PathBuf::from("/r/s/2/fs")], vec![PathBuf::from("/r/s/2/fs"), "/r/s/1/fs".into()]);
        let cases: [(Mount, &str, &[&str]); 5] = [
            (of(Some(&own()), true, &[], &option), "/r/s/9/fs", &["rw", "rbind"]),
            (of(Some(&own()), false, &[], &option), "/r/s/9/fs", &["ro", "rbind"]),
            (of(None, false, &one, &option), "/r/s/2/fs", &["ro", "rbind"]),
            (of(None, false, &two, &option), "overlay", &["lowerdir=/r/s/2/fs:/r/s/1/fs", "xino=on"]),
            (
                of(Some(&own()), true, &one, &option),
                "overlay",
                &["workdir=/r/s/9/work", "upperdir=/r/s/9/fs", "lowerdir=/r/s/2/fs", "xino=on"],
            ),
        ];
        for (mount, source, options) in cases {
            assert_eq!(
                (mount.source.as_str(), mount.options),
                (source, options.iter().map(|o| o.to_string()).collect())
            );
        }
    }
}
