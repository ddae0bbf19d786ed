#!/bin/sh
# Installs fedquilt on a board from the wheels beside this file, without a network, and starts the agent.
# cloud-init runs it once as root at the board's first start; on a Jetson, you run it. It is safe to run again.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
units=/etc/systemd/system
unfinished=fedquilt-install.service
say() { echo "fedquilt: $*"; }

exec 9>/run/fedquilt-install.lock
flock 9 # the service below may already run this script when you start it by hand

# cloud-init does not run this script again if it fails. This service resumes the installation at the next start, for
# example after a power cut.
cat >"$units/$unfinished" <<EOF
[Unit]
Description=Install fedquilt from the card
RequiresMountsFor="$here"

[Service]
Type=oneshot
ExecStart=/bin/sh "$here/install.sh"

[Install]
WantedBy=multi-user.target
EOF
systemctl enable --quiet "$unfinished"
sync # a power cut now must not leave an empty unit file, which systemd would never start

id fedquilt >/dev/null 2>&1 || useradd --system --home-dir /var/lib/fedquilt --shell /usr/sbin/nologin fedquilt
for group in video render; do # groups that can use a Jetson's GPU and a Pi's vcgencmd
  if getent group "$group" >/dev/null; then usermod -a -G "$group" fedquilt; fi
done

# For a Jetson, the identity is beside this file. On other boards, cloud-init has already copied it to /etc/fedquilt.
if [ -d "$here/identity" ]; then
  install -d /etc/fedquilt
  for file in "$here"/identity/*; do
    if [ -e "$file" ]; then cp "$file" /etc/fedquilt/; fi # the folder may be empty after an interrupted run
  done
fi
chown -R root:fedquilt /etc/fedquilt
chmod 750 /etc/fedquilt
chmod 640 /etc/fedquilt/*
sync

# Anyone who has the card can read this partition. The key is installed now, so delete it here before any later step
# can fail.
rm -rf "$here/identity"
if [ -f "$here/../user-data" ]; then
  printf '#cloud-config\n# The first start installed the identity of this board.\n' >"$here/../user-data"
fi
sync

# finish   Disable the first-boot installer.
finish() {
  sync
  systemctl disable --quiet "$unfinished"
  rm "$units/$unfinished"
  systemctl daemon-reload
  sync
}

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  if [ ! -f "$here/Dockerfile" ]; then
    say "this system has no Python 3.10 or newer, which fedquilt needs: use an image with a newer system" >&2
    exit 1
  fi
  # JetPack 4 and 5: the agent runs in a container, with the same user and folders.
  install -d -o fedquilt -g fedquilt -m 700 /var/lib/fedquilt
  finish
  say "this board's Python is older than 3.10; its identity is installed: run the agent in a container (docs/deploy.md)"
  exit
fi
if [ -d "$here/wheels" ]; then
  # Without Debian's package python3-venv, a new environment has no pip; the wheels include one. On a Jetson, the
  # environment uses the system's packages, because torch comes from NVIDIA. Each set of wheels is a separate release,
  # as with Ansible, which can upgrade from this release and roll back to it.
  system=
  if [ -e /etc/nv_tegra_release ]; then system=--system-site-packages; fi
  release=/opt/fedquilt/releases/$(sha256sum "$here/wheels/requirements.txt" | cut -c 1-12)
  if [ ! -e "$release/.complete" ]; then
    rm -rf "$release"
    python3 -m venv --without-pip $system "$release"
    "$release/bin/python" "$(ls "$here"/wheels/pip-*.whl)/pip" install --no-index --no-cache-dir --no-deps \
      --require-hashes --find-links "$here/wheels" --requirement "$here/wheels/requirements.txt"
    sync
    touch "$release/.complete"
  fi
  ln -sfn "$release" /opt/fedquilt/current
else
  say "there are no wheels in $here: install the software with Ansible (docs/deploy.md)"
fi

cp "$here/fedquilt-agent.service" "$units/"
systemctl daemon-reload
if [ ! -x /opt/fedquilt/current/bin/fedquilt ]; then
  finish
  exit
fi
systemctl enable fedquilt-agent.service
finish
# Last, because systemd retries an agent that fails to start; the installer is not needed for that.
systemctl start fedquilt-agent.service
say "the agent is running"
