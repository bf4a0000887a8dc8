#!/bin/sh
# Generates the Go code of every .proto file below this folder, with the plugins that go.mod pins.
# "generate.sh --check" changes nothing, and fails if the committed code differs from the generated code.
set -eu
cd "$(dirname "$0")"

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/bin" "$tmp/out"
CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -o "$tmp/bin/" \
    google.golang.org/protobuf/cmd/protoc-gen-go \
    google.golang.org/grpc/cmd/protoc-gen-go-grpc

# The version of protoc is left out of the headers: another 3.x of the distribution generates the same code.
PATH="$tmp/bin:$PATH" protoc --proto_path=. \
    --go_out="$tmp/out" --go_opt=paths=source_relative \
    --go-grpc_out="$tmp/out" --go-grpc_opt=paths=source_relative \
    $(find . -name '*.proto' | sort)
find "$tmp/out" -name '*.go' -exec sed -i 's|^\(// .*protoc  *\)v[0-9.]*$|\1(any)|' {} +

status=0
for f in $(cd "$tmp/out" && find . -name '*.go' | sort); do
    cmp -s "$tmp/out/$f" "$f" && continue
    if [ "${1:-}" = --check ]; then
        echo "proto/${f#./} is out of date: run make proto" >&2
        status=1
    else
        cp "$tmp/out/$f" "$f"
        echo "proto/${f#./} written"
    fi
done
exit $status
