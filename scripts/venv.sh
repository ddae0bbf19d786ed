#!/usr/bin/env bash
# Creates a virtual environment with pip, unless there is a working one. Exit code 2: it cannot be created.
# Usage: venv.sh VENV              PYTHON is the interpreter, 3.10 or newer (default: python3)
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

venv=${1:?usage: venv.sh VENV}
python=${PYTHON:-python3}

check_python() {
  command -v "$python" >/dev/null ||
    fail 2 "The interpreter $python does not exist." \
      "Install Python 3.10 or newer, or give the path of one: make setup PYTHON=/path/to/python3"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail 2 "$python is $("$python" --version 2>&1), but fedquilt needs Python 3.10 or newer." \
      "Install a newer Python and select it: make setup PYTHON=python3.11"
}

# venv installs pip with ensurepip, which Debian has in a separate package.
has_ensurepip() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }

install_ensurepip() {
  command -v apt-get >/dev/null && can_be_root || return 1
  say "Installing the package python3-venv."
  apt_install python3-venv && has_ensurepip
}

# borrow_pip   Install the pip wheel from Debian's package, with the pip inside that wheel.
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
  say "python3-venv is missing; installing pip from Debian's package into $venv instead (needs no root)."
  "$python" -m venv --clear --without-pip "$venv" && borrow_pip
}

"$venv/bin/python" -m pip --version >/dev/null 2>&1 && exit 0
check_python
if has_ensurepip || install_ensurepip; then
  "$python" -m venv --clear "$venv"
elif ! without_ensurepip; then
  rm -rf "$venv"
  fail 2 "$python cannot create a virtual environment: it lacks ensurepip, and pip could not be downloaded either." \
    "Ask an administrator to run: apt-get install python3-venv. Then run make setup again."
fi
