//! The media types by which images name their parts: all that are read or written here.
//!
//! OCI's are of its image specification (`media-types.md`), Docker's of "Image Manifest Version 2, Schema 2" (in the
//! repository distribution/distribution, `docs/content/spec/manifest-v2-2.md`).

/// OCI's index: one manifest a platform.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// OCI's manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// OCI's config of an image.
pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// A layer of an OCI image that is a plain tar.
pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// A layer of an OCI image, compressed by gzip.
pub const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A layer of an OCI image, compressed by zstd.
pub const LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";

/// A layer that is an EROFS image in a zstd stream: containerd's own, from 2.3 on (`core/images/mediatypes.go` of
/// containerd/containerd), which its EROFS differ takes.
pub const LAYER_EROFS: &str = "application/vnd.erofs.layer.v1+zstd";

const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar";

/// Layers that registries need not have: theirs is another place (OCI's is deprecated).
const ELSEWHERE: [&str; 2] =
    ["application/vnd.oci.image.layer.nondistributable.v1.tar", "application/vnd.docker.image.rootfs.foreign.diff.tar"];

/// Indexes and manifests, in OCI's and Docker's forms: what registries have under `manifests`.
pub(crate) const INDEX_OR_MANIFEST: [&str; 4] = [INDEX, MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST];

/// Whether it is that of an image's config.
pub(crate) fn is_config(media_type: &str) -> bool {
    [CONFIG, DOCKER_CONFIG].contains(&media_type)
}

/// Whether it is that of a layer that is a tar in a form that can be read.
pub(crate) fn is_readable_layer(media_type: &str) -> bool {
    let tars = [LAYER, DOCKER_LAYER].into_iter().chain(ELSEWHERE);
    let compression = tars.into_iter().find_map(|tar| media_type.strip_prefix(tar));
    matches!(compression, Some("" | "+gzip" | ".gzip" | "+zstd" | ".zstd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_readable_as_a_tar_plain_or_compressed_in_a_known_way() {
        let docker = "application/vnd.docker.image.rootfs.diff.tar.gzip";
        let elsewhere = "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd";
        for readable in [LAYER, LAYER_GZIP, LAYER_ZSTD, docker, elsewhere] {
            assert!(is_readable_layer(readable), "{readable}");
        }
        let encrypted = format!("{LAYER_GZIP}+encrypted");
        for other in [LAYER_EROFS, CONFIG, "", "application/vnd.oci.image.layer.v1.tar+xz", &encrypted] {
            assert!(!is_readable_layer(other), "{other}");
        }
    }
}
