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
# example after a power cut. Its unit file stays when the installation is complete: if it is removed while the service
# runs, systemd forgets its type, and kills it after 90 s.
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

# erase FOLDER   Overwrite the files of FOLDER in place, then delete them: a deleted file's bytes stay on the card.
erase() {
  for file in "$1"/*; do
    if [ -s "$file" ]; then dd if=/dev/zero of="$file" bs="$(wc -c <"$file")" count=1 conv=notrunc,fsync 2>/dev/null; fi
  done
  rm -rf "$1"
  sync
}

# Anyone who has the card can read its copy of the key. That copy is erased here, before any later step can fail. Its
# folder gets another name first, so that no later run installs an erased key.
if [ -d "$here/erased" ]; then erase "$here/erased"; fi
if [ -d "$here/identity" ]; then
  install -d -m 750 /etc/fedquilt
  install -m 640 "$here"/identity/* /etc/fedquilt/
  sync
  mv "$here/identity" "$here/erased"
  sync
  erase "$here/erased"
fi
chown -R root:fedquilt /etc/fedquilt
sync

# finish   Disable the first-boot installer.
finish() {
  sync
  systemctl disable --quiet --no-reload "$unfinished"
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
  before=$(readlink /opt/fedquilt/current || true)
  if [ -n "$before" ] && [ "$before" != "$release" ]; then ln -sfn "$before" /opt/fedquilt/previous; fi
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
systemctl enable --quiet fedquilt-agent.service
finish
# Do not wait for the agent: systemd starts it, or restarts one of an older release, and retries if it fails.
systemctl restart --no-block fedquilt-agent.service
say "the installation is complete; the agent starts"
