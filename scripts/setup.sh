#!/usr/bin/env bash
# Makes the virtual environment and everything in it that fedquilt needs. Safe to run again.
# Usage: setup.sh VENV EXTRA       EXTRA is server, client or dev (see pyproject.toml)
# Needs the network. Exit codes: 2 no Python that will do, 3 no broker, 4 the packages could not be installed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/lib.sh
. "$here/lib.sh"

venv=${1:?usage: setup.sh VENV EXTRA}
extra=${2:?usage: setup.sh VENV EXTRA}
project=$(dirname "$here")

"$here/venv.sh" "$venv"
say "Installing fedquilt[$extra] into $venv; the first time this takes some minutes."
"$venv/bin/python" -m pip install -q --disable-pip-version-check \
  -c "$project/constraints.txt" -e "$project[$extra]" ||
  fail 4 "pip could not install fedquilt[$extra]; its own message is above." \
    "Check the network and the free disk space (df -h), then run the same command again."
"$here/mosquitto.sh" "$venv"
