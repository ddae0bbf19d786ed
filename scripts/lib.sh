# Functions for the other scripts in this folder, which source this file.
# shellcheck shell=bash
#
# FEDQUILT_NO_ROOT=1 makes every script work without root, even if root or sudo is available.

say() { printf '%s\n' "$*"; }

# fail CODE WHAT-HAPPENED NEXT-STEP...   Print the message and exit with CODE.
fail() {
  local code=$1
  shift
  printf 'fedquilt setup: %s\n' "$@" >&2
  exit "$code"
}

# as_root COMMAND...   Run a command as root: directly, or with sudo if it needs no password.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# can_be_root   Succeed if as_root works.
can_be_root() {
  [ "${FEDQUILT_NO_ROOT:-}" != 1 ] || return 1
  [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

# apt_install PACKAGE...   Install packages. The package lists may be missing or old: if so, update them and retry.
apt_install() {
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@")
  as_root "${install[@]}" >/dev/null 2>&1 && return
  as_root apt-get update -qq && as_root "${install[@]}" >/dev/null
}

# apt_private FOLDER ARGUMENT...   Run apt-get with its own state and cache in FOLDER, so that it needs no root.
# It still reads the list of installed packages from the system's dpkg.
apt_private() {
  local folder=$1
  shift
  mkdir -p "$folder/state/lists/partial" "$folder/cache/archives/partial"
  apt-get -qq -o Dir::State="$folder/state" -o Dir::Cache="$folder/cache" \
    -o Dir::State::status=/var/lib/dpkg/status -o APT::Sandbox::User="$(id -un)" "$@"
}

# apt_unpack FOLDER PACKAGE   Unpack PACKAGE and the libraries that this machine lacks for it into FOLDER.
apt_unpack() {
  local folder=$1 package=$2 work
  mkdir -p "$folder"
  folder=$(cd "$folder" && pwd)
  work=$(mktemp -d)
  if (
    cd "$work"
    apt_private "$work" update
    # A simulated installation lists the missing packages. Of these, only libraries work without an installation.
    libraries=$(apt_private "$work" install -s --no-install-recommends "$package" |
      awk '$1 == "Inst" && $2 ~ /^lib/ { print $2 }')
    # shellcheck disable=SC2086  # one word for each package
    apt_private "$work" download "$package" $libraries
    for archive in ./*.deb; do dpkg -x "$archive" "$folder"; done
  ) >"$work/log" 2>&1; then
    rm -rf "$work"
  else
    cat "$work/log" >&2
    rm -rf "$work"
    return 1
  fi
}
