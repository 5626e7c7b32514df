#!/bin/sh
# Print users.acl with the hash of each password in its place: deploy/redis/users.sh > /etc/redis/users.acl
# A password comes from PRODUCER_PASSWORD, VIEWER_PASSWORD or WORKER_PASSWORD, or from the file that
# PRODUCER_PASSWORD_FILE and the like name. WEB_PASSWORD, or its file, adds web.acl, for Redis 7 and later.
# No password appears in the output or in a process list.
set -eu
here=$(dirname "$0")
users=$(cat "$here/users.acl")
names="PRODUCER VIEWER WORKER"
if [ -n "${WEB_PASSWORD-}${WEB_PASSWORD_FILE-}" ]; then
    users=$(cat "$here/users.acl" "$here/web.acl")
    names="$names WEB"
fi
for name in $names; do
    eval "password=\${${name}_PASSWORD-} file=\${${name}_PASSWORD_FILE-}"
    if [ -z "$password" ] && [ -n "$file" ]; then
        password=$(cat "$file")
    fi
    if [ "${#password}" -lt 16 ]; then
        echo "$0: ${name}_PASSWORD has ${#password} characters, but must have at least 16; set it or ${name}_PASSWORD_FILE" >&2
        exit 2
    fi
    hash=$(printf %s "$password" | sha256sum)
    users=$(printf '%s\n' "$users" | sed "s/#$name /#${hash%% *} /")
done
printf '%s\n' "$users"
