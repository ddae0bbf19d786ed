#!/usr/bin/env bash
# Makes a virtual environment with pip in it; leaves one that works alone. Exit code 2: it cannot be made.
# Usage: venv.sh VENV              PYTHON names the interpreter (default python3), 3.10 or newer
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

venv=${1:?usage: venv.sh VENV}
python=${PYTHON:-python3}

check_python() {
  command -v "$python" >/dev/null ||
    fail 2 "There is no program called $python." \
      "Install Python 3.10 or newer, or name one: make setup PYTHON=/path/to/python3"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail 2 "$python is $("$python" --version 2>&1), and fedquilt needs Python 3.10 or newer." \
      "Install a newer one and name it: make setup PYTHON=python3.11"
}

# Debian leaves ensurepip, by which venv gets its pip, to a package of its own.
has_ensurepip() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }

install_ensurepip() {
  command -v apt-get >/dev/null && can_be_root || return 1
  say "Installing the package python3-venv."
  apt_install python3-venv && has_ensurepip
}

# Runs pip straight from the wheel inside Debian's package, to install that wheel.
borrow_pip() {
  command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
  local work status=0
  work=$(mktemp -d)
  apt_unpack "$work" python3-pip-whl && install_wheel "$work"/usr/share/python-wheels/pip-*.whl || status=1
  rm -rf "$work"
  return "$status"
}

install_wheel() { "$venv/bin/python" "$1/pip" install -q --no-index --no-deps "$1"; }

without_ensurepip() {
  say "There is no python3-venv; taking pip from Debian's package into $venv instead (no rights needed)."
  "$python" -m venv --clear --without-pip "$venv" && borrow_pip
}

"$venv/bin/python" -m pip --version >/dev/null 2>&1 && exit 0
check_python
if has_ensurepip || install_ensurepip; then
  "$python" -m venv --clear "$venv"
elif ! without_ensurepip; then
  rm -rf "$venv"
  fail 2 "$python cannot make a virtual environment: its ensurepip is missing, and no other pip could be had." \
    "Have somebody with the rights run apt-get install python3-venv; then run make setup again."
fi
