#!/usr/bin/env bash
# Makes sure that there is a mosquitto program: the machine's own, else a package, else unpacked into the
# virtual environment. Does nothing when there is one. Exit code 3: there is none and none could be had.
# Usage: mosquitto.sh VENV
#   FEDQUILT_NO_ROOT=1            install nothing on the machine, even where that is possible
#   FEDQUILT_PRIVATE_MOSQUITTO=1  ignore the machine's own and unpack one into VENV
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
  # Debian starts the package's service at once; fedquilt runs its own brokers and wants no other on port 1883.
  if command -v systemctl >/dev/null && as_root systemctl disable --now mosquitto >/dev/null 2>&1; then
    say "Its system service is off (sudo systemctl enable --now mosquitto turns it on)."
  fi
}

unpacked() {
  command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
  say "Unpacking Debian's mosquitto into $venv (no rights needed)."
  rm -rf "$venv/mosquitto"
  apt_unpack "$venv/mosquitto" mosquitto || return 1
  wrapper usr/sbin/mosquitto
  wrapper usr/bin/mosquitto_passwd
}

# wrapper PROGRAM   Runs the unpacked PROGRAM with the libraries unpacked beside it.
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

# By its first word, because the exit code of -h is 3 up to Mosquitto 2.0.21.
runs() { [[ $("$1" -h 2>/dev/null) == "mosquitto version"* ]]; }

with_brew() {
  command -v brew >/dev/null || return 1
  say "Installing mosquitto with Homebrew."
  brew install --quiet mosquitto
}

if runs "$venv/bin/mosquitto" || machine_has_one >/dev/null || with_apt || unpacked || with_brew; then
  exit 0
fi
fail 3 "There is no mosquitto program (the MQTT broker) on this machine, and none could be installed." \
  "Install Mosquitto 2.0 or newer with your system's package manager, or set FEDQUILT_MOSQUITTO to one; then run make setup again."
