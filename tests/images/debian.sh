# shellcheck shell=bash
# Images of Debian 12 packages as OCI layouts: sourced by the image builders beside it.
#
#     debian_image OUT WORK REFERENCE CMD-JSON LAYER...
#
# Each LAYER, bottom to top, names a variable that lists packages; the layer holds these and what they depend on, less what
# lies below. A function finish_LAYER, if there is one, then gets the tree. The lowest layer is `base`, which is here.
#
# WORK is a directory for downloads and trees in the making; it is emptied of them at the end. Nothing else of this
# machine is used or changed: apt runs on a private state in WORK in which no package is installed, so that the image
# is the same whatever the host has. The packages are unpacked, not installed (no maintainer script runs); the few
# things that scripts would have made and that are needed are made by the finish functions.
#
# Needs Debian's apt, dpkg, tar, gzip, coreutils and root. No Python, no registry.

# shellcheck source=tests/images/oci.sh
. "$(dirname "${BASH_SOURCE[0]}")/oci.sh"

# shellcheck disable=SC2034
base="base-files base-passwd bash ca-certificates coreutils dash debianutils diffutils findutils grep gzip hostname libc-bin
    login mawk ncurses-base ncurses-bin netbase passwd procps sed tar tzdata util-linux xz-utils"

image_name=$(basename "$0")

die() { echo "$image_name: $*" >&2; exit 1; }

# The host's own Debian mirrors, and none of its other sources.
debian_sources() {
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | sort -u |
        while read -r uri release component; do
            case $release/$component in
                bookworm/main | bookworm-updates/main | bookworm-security/main)
                    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $release $component" ;;
            esac
        done
}

# apt on a state of its own. Its download user must reach the directories, and may not when the clone is under /root.
private_apt() {
    apt-get -q \
        -o "Dir::State=$work/apt" -o "Dir::State::lists=$work/apt/lists" -o "Dir::State::status=$work/apt/status" \
        -o "Dir::Cache=$work/apt/cache" -o "Dir::Cache::archives=$work/debs" \
        -o "Dir::Etc::sourcelist=$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferencesparts=/dev/null -o APT::Sandbox::User=root -o APT::Install-Recommends=false \
        -o APT::Get::List-Cleanup=false -o Acquire::Languages=none -o Debug::NoLocking=true -o APT::Architectures::=amd64 "$@"
}

private_apt_logged() { # WHAT ARGUMENT...
    private_apt "${@:2}" >"$work/apt/log" 2>&1 || { tail -5 "$work/apt/log" >&2; die "$1"; }
}

# The names of the .deb files that an installation of the given packages would fetch.
closure() {
    # shellcheck disable=SC2068
    private_apt install --print-uris -y $@ | sed -n "s/^'[^']*' \([^ ]*\) .*/\1/p" | sort
}

# Debian 12 keeps /bin, /lib and so on as links into /usr; packages still ship files under the old names.
usr_links() {
    mkdir -p "$1/usr"
    for name in bin sbin lib lib32 lib64 libx32; do
        mkdir -p "$1/usr/$name"
        ln -s "usr/$name" "$1/$name"
    done
}

# What the maintainer scripts of the base would have made.
finish_base() {
    local root=$1
    touch "$root/.base"
    cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
    cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
    install -d -m 1777 "$root/tmp" "$root/var/tmp"
    install -d -m 700 "$root/root"
    mkdir -p "$root"/{dev,proc,sys,run,etc/ssl/certs}
    ln -sf dash "$root/usr/bin/sh"
    ln -sf mawk "$root/usr/bin/awk"
    ln -sf /usr/share/zoneinfo/UTC "$root/etc/localtime"
    printf 'sandbox\n' >"$root/etc/hostname"
    find "$root/usr/share/ca-certificates" -name '*.crt' -exec cat {} + >"$root/etc/ssl/certs/ca-certificates.crt"
}

# A tree becomes a tar: names in order and numeric owners; the links into /usr stand in the base only.
pack() { # TREE TAR
    local without=()
    [ -e "$1/.base" ] || without=(--exclude=./bin --exclude=./sbin --exclude=./lib --exclude=./lib32 --exclude=./lib64 --exclude=./libx32)
    tar --create --file="$2" --directory="$1" --numeric-owner --sort=name --exclude=./.base "${without[@]}" .
}

# Documentation is left out, as in most images; copyright files stay.
unpack() { # TREE, names of .deb files on standard input
    local deb
    while read -r deb; do
        dpkg-deb --fsys-tarfile "$work/debs/$deb" |
            tar --extract --directory="$1" --preserve-permissions --numeric-owner --keep-directory-symlink \
                --exclude='./usr/share/man/*' --exclude='./usr/share/info/*' --exclude='./usr/share/lintian/*'
    done
    [ ! -d "$1/usr/share/doc" ] || find "$1/usr/share/doc" -mindepth 2 ! -type d ! -name copyright -delete
}

make_layer() { # NUMBER NAME
    local tree=$work/layers/$1
    usr_links "$tree"
    comm -13 "$work/apt/$(($1 - 1))" "$work/apt/$1" | unpack "$tree"
    [ "$(type -t "finish_$2")" != function ] || "finish_$2" "$tree"
    pack "$tree" "$tree.tar"
    rm -rf "$tree"
    OCI_LAYER=$(printf %02d "$1") oci_layer "$work/layout" "$tree.tar" "$2"
    echo "$image_name: layer $1 ($2)"
}

debian_image() { # OUT WORK REFERENCE CMD-JSON LAYER...
    local out=$1 reference=$3 cmd=$4 number layer packages="" jobs=() failed=0
    [ "$(id -u)" = 0 ] || die "needs root: the owners of files go into the image"
    [ "$(dpkg --print-architecture)" = amd64 ] || die "makes amd64 images only"
    [ -e "$out" ] && die "$out exists already"
    mkdir -p "$2" "$(dirname "$out")"
    work=$(cd "$2" && pwd)
    shift 4
    rm -rf "$work/apt" "$work/debs" "$work/layers" "$work/layout"
    mkdir -p "$work/apt/lists/partial" "$work/apt/cache" "$work/debs/partial" "$work/layers"

    echo "$image_name: package lists"
    : >"$work/apt/status"
    debian_sources >"$work/apt/sources.list"
    grep -q . "$work/apt/sources.list" || die "apt knows no source of Debian 12 (bookworm main): see apt-get indextargets"
    private_apt_logged "apt-get update failed" update

    echo "$image_name: packages"
    # The lists first: apt prints no address for a file that it has.
    : >"$work/apt/0"
    for number in $(seq $#); do
        layer=${!number}
        packages+=" ${!layer:-}"
        closure "$packages" >"$work/apt/$number"
    done
    # shellcheck disable=SC2086
    private_apt_logged "the packages could not be downloaded" install --download-only -y $packages

    oci_begin "$work/layout"
    # Two at a time, from the top, where the big ones are.
    for number in $(seq $# -1 1); do
        [ ${#jobs[@]} -lt 2 ] || { wait "${jobs[0]}" || failed=1; jobs=("${jobs[@]:1}"); }
        make_layer "$number" "${!number}" &
        jobs+=($!)
    done
    for number in "${jobs[@]}"; do wait "$number" || failed=1; done
    [ $failed = 0 ] || die "a layer could not be made; the trees are in $work"
    oci_end "$work/layout" "$reference" "$cmd"
    mv "$work/layout" "$out"
    rm -rf "$work/apt" "$work/debs" "$work/layers"
}
