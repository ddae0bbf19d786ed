#!/usr/bin/env bash
# Installs Mosquitto if it is missing: with apt-get as root, else unpacked into the virtual environment, else with
# Homebrew. Exit code 3: Mosquitto is missing and cannot be installed.
# Usage: mosquitto.sh VENV
#   FEDQUILT_NO_ROOT=1            do not install packages on the machine, even as root
#   FEDQUILT_PRIVATE_MOSQUITTO=1  ignore the machine's Mosquitto and unpack one into VENV
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

venv=${1:?usage: mosquitto.sh VENV}
places=/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin

machine_has_one() {
  [ "${FEDQUILT_PRIVATE_MOSQUITTO:-}" != 1 ] && PATH="$PATH:$places" command -v mosquitto
}

with_apt() {
  command -v apt-get >/dev/null && [ "${FEDQUILT_PRIVATE_MOSQUITTO:-}" != 1 ] && can_be_root || return 1
  say "Installing the package mosquitto."
  apt_install mosquitto || return 1
  # Debian starts the package's service at once. Turn it off: fedquilt starts its own brokers, and port 1883 stays free.
  if command -v systemctl >/dev/null && as_root systemctl disable --now mosquitto >/dev/null 2>&1; then
    say "Turned its system service off. To turn it on: sudo systemctl enable --now mosquitto"
  fi
}

unpacked() {
  command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
  say "Unpacking Debian's mosquitto into $venv (needs no root)."
  rm -rf "$venv/mosquitto"
  apt_unpack "$venv/mosquitto" mosquitto || return 1
  wrapper usr/sbin/mosquitto
  wrapper usr/bin/mosquitto_passwd
}

# wrapper PROGRAM   Create a script that runs the unpacked PROGRAM with the libraries unpacked beside it.
wrapper() {
  local target
  target="$venv/bin/$(basename "$1")"
  mkdir -p "$venv/bin"
  cat >"$target" <<'END'
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/../mosquitto
for folder in "$root"/usr/lib/*-linux-* "$root"/lib/*-linux-*; do
  LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH
END
  printf 'exec "$root/%s" "$@"\n' "$1" >>"$target"
  chmod +x "$target"
}

# runs PROGRAM   Succeed if PROGRAM is a working Mosquitto. It checks the output, because `mosquitto -h` exits with 3 up
# to version 2.0.21.
runs() { [[ $("$1" -h 2>/dev/null) == "mosquitto version"* ]]; }

with_brew() {
  command -v brew >/dev/null || return 1
  say "Installing mosquitto with Homebrew."
  brew install --quiet mosquitto
}

if runs "$venv/bin/mosquitto" || machine_has_one >/dev/null || with_apt || unpacked || with_brew; then
  exit 0
fi
fail 3 "The MQTT broker Mosquitto is missing on this machine, and could not be installed." \
  "Install Mosquitto 2.0 or newer with your system's package manager, or set FEDQUILT_MOSQUITTO to the path of one." \
  "Then run make setup again."
