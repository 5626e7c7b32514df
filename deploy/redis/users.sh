#!/bin/sh
# Print users.acl with the hash of each password in its place: deploy/redis/users.sh > /etc/redis/users.acl
# A password comes from PRODUCER_PASSWORD, VIEWER_PASSWORD or WORKER_PASSWORD, or from the file that
# PRODUCER_PASSWORD_FILE and the like name. With REDIS_7=yes the producer gets its line of redis7.acl, whose selectors
# older versions cannot read; WEB_PASSWORD, or its file, asks for that, too, and adds the user of the web service.
# No password appears in the output or in a process list.
set -eu
here=$(dirname "$0")
users=$(cat "$here/users.acl")
names="PRODUCER VIEWER WORKER"
web=${WEB_PASSWORD-}${WEB_PASSWORD_FILE-}
if [ -n "$web" ] || [ "${REDIS_7-}" = yes ]; then
    users=$(grep -v '^user producer ' "$here/users.acl"; grep '^user producer ' "$here/redis7.acl")
fi
if [ -n "$web" ]; then
    users=$(printf '%s\n' "$users"; grep '^user web ' "$here/redis7.acl")
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
