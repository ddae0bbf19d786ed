#!/bin/sh
# Run by the service `certificates` of docker-compose.yml, once: a federation, and what each container is to have of it.
set -eu
if [ ! -e /federation/federation.yaml ]; then
  fedquilt federation init --folder /federation --broker broker-tls
  fedquilt provision strong-0 --folder /federation --kind strong --clients 0-2
  fedquilt provision medium-0 --folder /federation --kind medium --clients 3-5
  fedquilt provision weak-0 --folder /federation --kind weak --clients 6-7
fi
cp /federation/coordinator/* /identity/coordinator/
for kind in strong medium weak; do cp "/federation/boards/$kind-0/"* "/identity/$kind/"; done
