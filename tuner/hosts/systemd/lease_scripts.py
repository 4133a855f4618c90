"""The shell scripts behind a lease: constants.

What varies is their arguments: ``$1`` is the word ``sudo`` or empty, ``$2`` the folder. Each holds the lock on
the folder's parent for as long as it runs, and may run twice: a lost connection repeats it.
"""

_PRELUDE = """
sudo=$1 folder=$2 parent=${2%/*}
root() { if [ -n "$sudo" ]; then sudo -n -- "$@"; else "$@"; fi; }
put() {
    root install -m 0644 /dev/null "$folder/$1.new" </dev/null && root tee "$folder/$1.new" >/dev/null &&
        has_size "$folder/$1.new" "$2" && root mv -fT "$folder/$1.new" "$folder/$1"
}
has_size() {
    [ -z "$2" ] || [ "$(wc -c <"$1")" -eq "$2" ] && return
    echo "$1 was cut short" >&2
    return 1
}
uptime_s() { read -r up rest </proc/uptime && echo "${up%%.*}"; }
extend() { now=$(uptime_s) && echo "$((now + $1))" | put expires; }
lock() {
    exec 9<"$parent" && flock -w 30 9 && return
    echo "the lock on $parent cannot be had" >&2
    exit 1
}
holder() { if [ -e "$folder/holder.json" ]; then cat "$folder/holder.json"; fi; }
is_held_by() { current=$(holder) || exit 1; [ "$current" = "$1" ]; }
"""
LOOK = (
    _PRELUDE
    + """
[ -d "$parent" ] || exit 0
lock
[ -d "$folder" ] || exit 0
expires=$(cat "$folder/expires" 2>/dev/null)
echo "$(uptime_s) ${expires:-0}"
holder
"""
)
# $3 how long, s; $4 whose lease it is now, empty: nobody's; $5 "free" where no folder may be there, "expired"
# where it must have run out; $6 whose it is then
TAKE = (
    _PRELUDE
    + """
[ -d "$parent" ] || root install -d -m 0755 "$parent" || exit 1
lock
if is_held_by "$6"; then extend "$3" && echo taken; exit; fi
if ! is_held_by "$4"; then echo changed; exit; fi
if [ "$5" = free ] && [ -d "$folder" ]; then echo changed; exit; fi
if [ "$5" = expired ] && [ "$(uptime_s)" -lt "$(cat "$folder/expires" 2>/dev/null || echo 0)" ]; then
    echo changed
    exit
fi
made=
if [ ! -d "$folder" ]; then root mkdir -m 0755 "$folder" && made=yes || exit 1; fi
if extend "$3" && printf '%s\\n' "$6" | put holder.json; then echo taken; exit; fi
[ -z "$made" ] || root rm -rf "$folder"
exit 1
"""
)
RENEW = (
    _PRELUDE
    + """
[ -d "$parent" ] || { echo changed; exit; }
lock
if is_held_by "$4"; then extend "$3" && echo renewed; else echo changed; fi
"""
)
# standard input ends early when the connection is lost: $5 says how long it is, in bytes
KEEP = (
    _PRELUDE
    + """
[ -d "$parent" ] || { echo changed; exit; }
lock
if is_held_by "$4"; then put "$3" "$5" && echo kept; else echo changed; fi
"""
)
DROP = (
    _PRELUDE
    + """
[ -d "$folder" ] || { echo dropped; exit; }
lock
if is_held_by "$3"; then root rm -rf "$folder" && echo dropped; else echo changed; fi
"""
)
