#!/bin/sh
# Print users.acl with the hash of each password in its place: deploy/redis/users.sh > /etc/redis/users.acl
# A password comes from PRODUCER_PASSWORD, VIEWER_PASSWORD or WORKER_PASSWORD, or from the file that
# PRODUCER_PASSWORD_FILE and the like name. With REDIS_7=yes the producer gets its line of redis7.acl, whose selectors
# older versions cannot read; WEB_PASSWORD, or its file, asks for that, too, and adds the user of the web service.
# With PRODUCER_IDS=<beginning> the producer may write RQ's hashes of those jobs only whose ids begin so, such as team-a. for
# jobs team-a.1, team-a.2: RQ has no names of queues in them, and workers of other queues may unpickle what they find.
# No password appears in the output or in a process list.
set -eu
here=$(dirname "$0")
users=$(cat "$here/users.acl")
names="PRODUCER VIEWER WORKER"
case "${PRODUCER_IDS-}" in
*[!A-Za-z0-9._-]*)
    echo "$0: PRODUCER_IDS is '$PRODUCER_IDS', but may have letters, digits, '.', '_' and '-' only; correct it" >&2
    exit 2
    ;;
esac
web=${WEB_PASSWORD-}${WEB_PASSWORD_FILE-}
if [ -n "$web" ] || [ "${REDIS_7-}" = yes ]; then
    users=$(grep -v '^user producer ' "$here/users.acl"; grep '^user producer ' "$here/redis7.acl")
fi
if [ -n "$web" ]; then
    users=$(printf '%s\n' "$users"; grep '^user web ' "$here/redis7.acl")
    names="$names WEB"
fi
users=$(printf '%s\n' "$users" | sed "/^user producer /s/~rq:job:\*/~rq:job:${PRODUCER_IDS-}*/g")
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
