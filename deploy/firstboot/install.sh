#!/bin/sh
# Run once on a board, as root, by cloud-init at its first start (or by hand on a Jetson): installs fedquilt from the
# wheels beside this file, without a network, and starts the agent. Safe to run again.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
units=/etc/systemd/system
unfinished=fedquilt-install.service
say() { echo "fedquilt: $*"; }

exec 9>/run/fedquilt-install.lock
flock 9 # the next start may be at it when somebody gives the command by hand

# cloud-init runs this once, whatever becomes of it. If the power goes meanwhile, the next start goes on.
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
sync # a name without its content would be a unit that is never started

id fedquilt >/dev/null 2>&1 || useradd --system --home-dir /var/lib/fedquilt --shell /usr/sbin/nologin fedquilt
for group in video render; do # what a Jetson's GPU and a Pi's vcgencmd belong to
  if getent group "$group" >/dev/null; then usermod -a -G "$group" fedquilt; fi
done

# On a card for a Jetson the identity lies beside this file; elsewhere cloud-init has put it in place.
if [ -d "$here/identity" ]; then
  install -d /etc/fedquilt
  for file in "$here"/identity/*; do
    if [ -e "$file" ]; then cp "$file" /etc/fedquilt/; fi # it may have been emptied, but not removed
  done
fi
chown -R root:fedquilt /etc/fedquilt
chmod 750 /etc/fedquilt
chmod 640 /etc/fedquilt/*
sync

# Whoever holds the card can read this partition: the key is in place now, and leaves it, whatever
# becomes of the rest.
rm -rf "$here/identity"
if [ -f "$here/../user-data" ]; then
  printf '#cloud-config\n# The identity of this board was here until its first start.\n' >"$here/../user-data"
fi
sync

# finish   Nothing is left for the next start.
finish() {
  sync
  systemctl disable --quiet "$unfinished"
  rm "$units/$unfinished"
  systemctl daemon-reload
  sync
}

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  if [ ! -f "$here/Dockerfile" ]; then
    say "there is no Python 3.10 or newer here, which fedquilt needs: take an image with a newer system" >&2
    exit 1
  fi
  # JetPack 4 and 5: the agent runs in a container, as the same user and with the same folders.
  install -d -o fedquilt -g fedquilt -m 700 /var/lib/fedquilt
  finish
  say "Python is older than 3.10 here. The identity is in place; the agent runs in a container (docs/deploy.md)"
  exit
fi
if [ -d "$here/wheels" ]; then
  # Without Debian's python3-venv there is no pip in a new environment, but there is one among the wheels. The
  # system's packages stay visible on a Jetson, whose torch is NVIDIA's own.
  # Each set of wheels is a release of its own, as with Ansible, which can upgrade this one and come back to it.
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
  say "there are no wheels in $here; Ansible installs the software (docs/deploy.md)"
fi

cp "$here/fedquilt-agent.service" "$units/"
systemctl daemon-reload
if [ ! -x /opt/fedquilt/current/bin/fedquilt ]; then
  finish
  exit
fi
systemctl enable fedquilt-agent.service
finish
# Last: systemd tries an agent that does not start again by itself, and needs no other installation for it.
systemctl start fedquilt-agent.service
say "the agent runs"
