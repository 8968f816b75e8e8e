# For the scripts that source this file: where the program is that a build has made; and what building and testing need, which
# it looks for, and installs with apt-get where root runs the script and something is missing.
#
# A script that sources it sets
#   repository  the checkout
# and, to install something,
#   install     empty: nothing may be installed
# and defines `say TEXT...` and `missing TEXT...`, which does not return.
# shellcheck shell=bash disable=SC2154

# The oldest compiler that builds Myriad is in its manifest. An installation of the analysis has none, and builds nothing.
wanted=
[ ! -e "$repository/Cargo.toml" ] || wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repository/Cargo.toml")
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

# Where cargo builds, absolute. CARGO_TARGET_DIR or cargo's configuration may say; a relative directory there is below the
# checkout, since that is where the scripts run cargo.
target_directory() {
    (cd "$repository" && cargo metadata --format-version 1 --no-deps --offline) | sed 's/.*"target_directory":"\([^"]*\)".*/\1/'
}

# The program that `cargo build --release -p myriad` makes.
built_program() {
    local target
    target=$(target_directory) && printf '%s/release/myriad\n' "$target"
}

new_enough() { [ -n "$1" ] && [ "$(printf '%s\n%s\n' "$wanted" "$1" | sort -V | head -n1)" = "$wanted" ]; }

# Of a toolchain that runs: the programs of rustup are there before one is.
rust_version() {
    if cargo --version >/dev/null 2>&1; then rustc --version 2>/dev/null | cut -d' ' -f2; fi
}

may_install() { [ -n "$install" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

updated=
apt_update() {
    [ -z "$updated" ] || return 0
    apt-get update -q >/dev/null || say "apt-get update failed; going on with the package lists that are here"
    updated=yes
}

apt_install() {
    apt_update
    say "installing: $*"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null
}

# The version that apt-get would install.
offered() { apt-cache policy "$1" 2>/dev/null | sed -n 's/ *Candidate: *//p' | sed 's/[+~-].*//' | grep -v none || :; }

# A C compiler, and cargo with a compiler that is new enough.
need_compilers() {
    if ! command -v cc >/dev/null; then
        may_install && apt_install build-essential
        command -v cc >/dev/null || missing "no C compiler and linker named cc: apt-get install build-essential"
    fi
    if ! new_enough "$(rust_version)"; then
        if may_install; then
            say "Rust $wanted or newer is needed"
            apt_update
            # Without these cargo can fetch nothing.
            [ -e /etc/ssl/certs/ca-certificates.crt ] || apt_install ca-certificates
            # Debian 12 keeps a new enough compiler beside its old one, for browsers.
            if new_enough "$(offered rustc)"; then
                apt_install cargo rustc
            elif new_enough "$(offered rustc-web)"; then
                apt_install cargo-web rustc-web
            elif [ -n "$(offered rustup)" ]; then
                apt_install rustup
                hash -r
                # If it cannot, the version below says so.
                rustup default stable >/dev/null 2>&1 || :
            fi
            hash -r
        fi
        have=$(rust_version)
        new_enough "$have" || missing "Rust $wanted or newer is needed, ${have:-none} is there. Debian 12: apt-get install \
cargo-web rustc-web. Elsewhere: rustup, from https://rustup.rs"
    fi
}

# The package of the compiler that is there; nothing if no package holds it. A compiler beside the system's own has a suffix, and
# so have the packages that go with it: rustc-web, rustfmt-web, rust-web-clippy.
rustc_package() {
    local rustc
    rustc=$(command -v rustc) && rustc=$(realpath "$rustc") || return 0
    dpkg-query --search "$rustc" 2>/dev/null | head -n1 | cut -d: -f1 | grep -E '^rustc(-|$)' || :
}

have_checkers() { cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1; }

# rustfmt and clippy of the same version as the compiler, whoever installed that.
need_checkers() {
    local package suffix packages by_hand
    ! have_checkers || return 0
    package=$(rustc_package)
    if [ -n "$package" ]; then
        suffix=${package#rustc}
        # The compiler too, since all must be of one version.
        packages="$package rustfmt$suffix rust$suffix-clippy"
        by_hand="apt-get install $packages"
        # shellcheck disable=SC2086
        ! may_install || apt_install $packages || :
    else
        by_hand="rustup component add rustfmt clippy"
        if [ -n "$install" ] && command -v rustup >/dev/null; then
            say "installing: rustfmt and clippy, by rustup"
            rustup component add rustfmt clippy >/dev/null 2>&1 || :
        fi
    fi
    hash -r
    cargo fmt --version >/dev/null 2>&1 || missing "no rustfmt: $by_hand"
    cargo clippy --version >/dev/null 2>&1 || missing "no clippy: $by_hand"
}
