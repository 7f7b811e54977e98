# shellcheck shell=bash
# An OCI image layout, written with a shell and coreutils: sourced by the image builders beside it.
#
#     oci_begin DIR                     an empty layout in DIR
#     oci_layer DIR TAR COMMENT         TAR becomes the next layer (gzip); TAR is removed
#     oci_end DIR REFERENCE CMD-JSON    config, manifest and index under the reference name
#
# Layers may be made in parallel when each call is given its number through OCI_LAYER (two digits, bottom first).
# The bytes are the same for the same tars: gzip gets no name and no time, the config's time is fixed.

oci_begin() {
    mkdir -p "$1/blobs/sha256" "$1/.layers"
    printf '{"imageLayoutVersion":"1.0.0"}' >"$1/oci-layout"
}

# Puts standard input into the layout as a blob; prints "digest size".
oci_blob() {
    local dir=$1 tmp digest
    tmp=$(mktemp "$dir/.blob.XXXXXX")
    cat >"$tmp"
    digest=$(sha256sum "$tmp" | cut -d' ' -f1)
    chmod 644 "$tmp"
    mv "$tmp" "$dir/blobs/sha256/$digest"
    printf '%s %s' "$digest" "$(stat -c %s "$dir/blobs/sha256/$digest")"
}

oci_layer() {
    local dir=$1 tar=$2 comment=$3 diff blob
    local number=${OCI_LAYER:-$(printf '%02d' "$(find "$dir/.layers" -type f | wc -l)")}
    diff=$(sha256sum "$tar" | cut -d' ' -f1)
    blob=$(gzip -n -6 <"$tar" | oci_blob "$dir")
    rm -f "$tar"
    printf '%s %s %s\n' "$diff" "$blob" "$comment" >"$dir/.layers/$number"
}

oci_end() {
    local dir=$1 reference=$2 cmd=$3
    local digest size diff comment layers='' diffs='' history='' config manifest
    while read -r diff digest size comment; do
        layers+="${layers:+,}{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar+gzip\",\"digest\":\"sha256:$digest\",\"size\":$size}"
        diffs+="${diffs:+,}\"sha256:$diff\""
        history+="${history:+,}{\"created\":\"2024-01-01T00:00:00Z\",\"created_by\":\"$comment\"}"
    done < <(cat "$dir"/.layers/*)
    config=$(oci_blob "$dir" <<END
{"created":"2024-01-01T00:00:00Z","architecture":"amd64","os":"linux","config":{"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin","LANG=C.UTF-8"],"Cmd":$cmd,"WorkingDir":"/"},"rootfs":{"type":"layers","diff_ids":[$diffs]},"history":[$history]}
END
    )
    manifest=$(oci_blob "$dir" <<END
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:${config% *}","size":${config#* }},"layers":[$layers]}
END
    )
    cat >"$dir/index.json" <<END
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:${manifest% *}","size":${manifest#* },"annotations":{"org.opencontainers.image.ref.name":"$reference"},"platform":{"architecture":"amd64","os":"linux"}}]}
END
    rm -rf "$dir/.layers"
}
