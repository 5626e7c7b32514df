#!/bin/sh
# Makes what docker-compose.yml keeps secret, once: a password of each Redis user and the token of the web service,
# a file each in the directory $1, and users.acl from them. What is there is kept: deploy/redis/secrets.sh DIRECTORY
# With a second directory, its folders redis, worker, web and producer, where they are there, get what that service needs
# and nothing else: deploy/redis/secrets.sh DIRECTORY SERVICES
set -eu
umask 077
mkdir -p "$1"
for name in producer_password viewer_password worker_password web_password api_token; do
    [ -s "$1/$name" ] && continue
    # Named once it is whole: a container that was killed here leaves no half a password.
    head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$1/.$name"
    mv "$1/.$name" "$1/$name"
done
PRODUCER_PASSWORD_FILE=$1/producer_password VIEWER_PASSWORD_FILE=$1/viewer_password \
    WORKER_PASSWORD_FILE=$1/worker_password WEB_PASSWORD_FILE=$1/web_password "$(dirname "$0")/users.sh" >"$1/.users.acl"
# Redis runs as another user: it may read this file, which has hashes only, and the password of who may only look.
chmod 0644 "$1/.users.acl" "$1/viewer_password"
chmod 0755 "$1"
mv "$1/.users.acl" "$1/users.acl"

from=$1 services=${2-}
give() {
    service=$services/$1
    shift
    [ -n "$services" ] && [ -d "$service" ] || return 0
    for name in "$@"; do
        cp -p "$from/$name" "$service/.$name"
        mv "$service/.$name" "$service/$name"
    done
    chmod 0755 "$service"
}
give redis users.acl viewer_password
give worker worker_password
give web web_password api_token
give producer producer_password
