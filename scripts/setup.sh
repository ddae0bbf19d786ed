#!/usr/bin/env bash
# Creates the virtual environment and installs everything that fedquilt needs. It is safe to run again.
# Usage: setup.sh VENV EXTRA       EXTRA is server, client, dev or docs, or some of them with commas (see pyproject.toml)
# Needs the network. Exit codes: 2 no suitable Python, 3 no broker, 4 pip could not install the packages.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/lib.sh
. "$here/lib.sh"

venv=${1:?usage: setup.sh VENV EXTRA}
extra=${2:?usage: setup.sh VENV EXTRA}
project=$(dirname "$here")

"$here/venv.sh" "$venv"
say "Installing fedquilt[$extra] into $venv; the first time, this takes some minutes."
"$venv/bin/python" -m pip install -q --disable-pip-version-check \
  -c "$project/constraints.txt" -e "${project}[$extra]" ||
  fail 4 "pip could not install fedquilt[$extra]; see its error message above." \
    "Check the network and the free disk space (df -h), then run the same command again."
"$here/mosquitto.sh" "$venv"
