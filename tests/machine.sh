# shellcheck shell=bash
# What the scripts need of a machine, and Debian's packages for what it lacks: sourced by quickstart and test.
#
# A tool is looked for by its command first, so that one installed in another way is used; apt is called only when
# something is missing.

rust_needed=1.91  # rust-version of Cargo.toml
missing=()        # packages

# The comment at a script's head is its --help.
print_head() { # SCRIPT
    awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$1"
}

have() { command -v "$1" >/dev/null 2>&1; }

need() { # COMMAND PACKAGE
    have "$1" || missing+=("$2")
}

at_least() { # VERSION LEAST
    printf '%s\n' "$2" "$1" | sort -V -C
}

rust_new_enough() {
    at_least "$(cargo --version 2>/dev/null | cut -d' ' -f2)" $rust_needed &&
        at_least "$(rustc --version 2>/dev/null | cut -d' ' -f2)" $rust_needed
}

# What `cargo build` needs. Debian 12 has a recent Rust in its security updates; it lies in /usr/bin, and an older
# cargo that stands earlier in PATH must not hide it.
need_rust() {
    echo '#include <stdlib.h>' | cc -E - >/dev/null 2>&1 || missing+=(gcc libc6-dev)
    [ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
    rust_new_enough && return
    PATH=/usr/bin:$PATH
    rust_new_enough || missing+=(rustc-web cargo-web)
}

# Installs what the calls of need and need_rust found missing. Output goes to the file LOG.
install_missing() { # LOG
    if [ ${#missing[@]} = 0 ]; then
        echo "nothing is missing"
        return
    fi
    echo "installing ${missing[*]}"
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q)
    # An update fails as a whole when one of the machine's other sources does: the installation will tell.
    "${apt[@]}" update >"$1" 2>&1 || true
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >>"$1" 2>&1 || return
    hash -r
}
