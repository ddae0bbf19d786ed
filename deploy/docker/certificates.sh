#!/bin/sh
# The service `certificates` of docker-compose.yml runs this script. It creates a federation if there is none, and
# copies to each container's volume the files that the container needs. The broker starts after it. After a change here,
# restart the broker (docker-compose restart broker-tls), so that its ACL has a section for each board.
set -eu
[ -e /federation/federation.yaml ] || fedquilt federation init --folder /federation --broker broker-tls
board() { [ -e "/federation/boards/$1/tls.crt" ] || fedquilt provision "$@" --folder /federation; }
board strong-0 --kind strong --clients 0-2
board medium-0 --kind medium --clients 3-5
board weak-0 --kind weak --clients 6-7
cp /federation/coordinator/* /identity/coordinator/
cp /federation/watch/* /identity/watch/
for kind in strong medium weak; do cp "/federation/boards/$kind-0/"* "/identity/$kind/"; done
