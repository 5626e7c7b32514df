#!/bin/sh
# Print the base images of this project with their digests of today, as lines for .env, so that a build and a start take
# the same bytes tomorrow: deploy/pin-images.sh >.env
# Needs docker with buildx, and a network: the digests come from the registry. Run it again to take updates.
set -eu
for pair in BASE_IMAGE=python:3.11-slim-bookworm REDIS_IMAGE=redis:7-bookworm; do
    image=${pair#*=}
    digest=$(docker buildx imagetools inspect "$image" --format '{{.Manifest.Digest}}')
    case $digest in
        sha256:*) [ "${#digest}" -eq 71 ] && echo "${pair%%=*}=$image@$digest" && continue ;;
    esac
    echo "$0: the registry gave no digest of $image, but '$digest'; look at \`docker buildx imagetools inspect $image\`" >&2
    exit 1
done
