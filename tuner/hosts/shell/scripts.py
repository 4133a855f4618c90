"""What runs on a host without systemd: constant POSIX sh, for dash, bash and busybox alike.

Nothing is ever put into these texts: what varies comes as ``$1``, ``$2`` … or on standard input.

A start of a server has a folder of its own, ``start-TOKEN``, with these files:

======== =============================================================================================
order    command line and environment (:mod:`tuner.hosts.shell.order`); gone once it has been read
status   one line, replaced as a whole (:mod:`tuner.hosts.shell.status`)
log      what the server wrote
stop     there: the server is to end, and its death is ours; made before any signal is sent
asked    there: SIGTERM was sent
expired  there: nobody renewed the lease, so the server was stopped (with ``stop``)
refused  there: the program could not be executed
======== =============================================================================================
"""

from tuner.hosts.shell.words import COMMON, PROCESSES

START = (
    PROCESSES
    + r"""
# DIRECTORY TOKEN MARK DELAY EXPIRES LAUNCH SUPERVISE SERVER WATCH; the order on standard input.
# Says how it went in one word, then the status line, and why on a third. A token starts one server at most,
# however often it is asked for: the folder is the proof.
t_directory=$1 t_token=$2 t_mark=$3 t_delay=$4 t_expires=$5
t_folder=$t_directory/start-$t_token
t_umask=$(umask)
umask 077
mkdir -p -- "$t_directory" || exit 1
if mkdir -- "$t_folder" 2>/dev/null; then
    for t_other in "$t_directory"/start-*; do
        [ "$t_other" = "$t_folder" ] && continue
        t_tries=0
        while supervised "$t_other"; do
            t_tries=$((t_tries + 1))
            # One that died by itself is still being buried: it is waited for.
            case $t_phase in starting | running | restarting) t_tries=1000 ;; esac
            if [ "$t_tries" -ge 500 ]; then
                rmdir -- "$t_folder"
                echo busy
                status_line
                exit
            fi
            nap
        done
        rm -rf -- "$t_other"
    done
    cat >"$t_folder/order" && : >"$t_folder/log" || { rm -rf -- "$t_folder"; exit 1; }
    # A connection that is lost ends standard input as well.
    if [ "$(tail -n 1 "$t_folder/order")" != . ]; then
        rm -rf -- "$t_folder"
        echo "the command line did not arrive whole" >&2
        exit 1
    fi
    { TUNER_SERVICE=$t_mark:s:$t_token sh -c "$6" tuner-launch "$7" tuner-supervisor \
        "$t_folder" "$t_mark" "$t_token" "$t_delay" "$t_expires" "$t_umask" "$8" "$9"; } >/dev/null 2>&1
fi
[ -d "$t_folder" ] || { mkdir -- "$t_folder"; exit 1; }
t_tries=0
while [ "$t_tries" -lt 400 ]; do
    t_tries=$((t_tries + 1))
    if load "$t_folder" && [ "$t_phase" != starting ]; then
        t_word=started
        # Executed: until then the environment is still the supervisor's. It cannot be seen where the program
        # has more rights than we have.
        if [ "$t_phase" != running ] || [ "$t_tries" -gt 300 ] ||
            { tr '\000' '\n' <"/proc/$t_main/environ" | grep -q -e "^TUNER_SERVICE=$t_mark:m:"; } 2>/dev/null; then
            load "$t_folder"
            [ "$t_phase" = refused ] && t_word=refused
            echo "$t_word"
            status_line
            tail -n 1 "$t_folder/log" 2>/dev/null
            exit
        fi
        supervised "$t_folder" || load "$t_folder"
        if [ "$t_phase" = running ] && ! supervised "$t_folder"; then break; fi
    fi
    nap
done
echo unknown
status_line
"""
)

LAUNCH = r"""
# Runs sh -c "$@" for good. Not with '&': a background command ignores SIGINT and SIGQUIT for ever, and so
# would the server, which may well use them. Parts of a pipeline do not; the one that stays behind loses
# its shell, and with it nobody waits for it.
{ exec setsid sh -c "$@" </dev/null >/dev/null 2>&1; } | { kill -KILL $$; }
"""

SUPERVISE = (
    PROCESSES
    + r"""
# FOLDER MARK TOKEN DELAY EXPIRES UMASK SERVER WATCH
t_folder=$1 t_mark=$2 t_token=$3 t_delay=$4 t_expires=$5 t_umask=$6

# Nobody could see how a server fares whose state cannot be written: it is ended, which it is by now.
insist() {
    t_tries=0
    until record "$t_folder"; do
        t_tries=$((t_tries + 1))
        if [ "$t_tries" -ge 60 ]; then
            bury 0
            exit 1
        fi
        nap
    done
}

# Ends what the main process left behind; with $1 it is asked first.
bury() {
    t_rounds=0
    while :; do
        t_rest="$(carriers "$t_mark:m:$t_token:") $(in_session $$ "$t_mark")"
        [ "$t_rest" != ' ' ] || return
        if [ "$1" = 1 ] && [ "$t_rounds" -lt 20 ]; then
            [ "$t_rounds" -gt 0 ] || signal_all TERM $t_rest
        else
            signal_all KILL $t_rest
        fi
        t_rounds=$((t_rounds + 1))
        [ "$t_rounds" -lt 400 ] || return
        nap
    done
}

# Gives the lease back that ran out; whoever took it over or renewed it since keeps it.
drop_lease() {
    exec 9<"${t_expires%/*/*}" && flock 9 && read -r t_end <"$t_expires" && read -r t_up t_idle </proc/uptime &&
        [ "${t_up%.*}" -ge "$t_end" ] && rm -rf -- "${t_expires%/*}"
}

# Handlers, because what is ignored stays ignored in the server.
trap : HUP INT QUIT TERM
read_boot
look_at $$
t_boot=$t_now t_sup=$$ t_sup_start=$t_start
t_phase=starting t_restarts=0 t_invocation=- t_main=- t_main_start=- t_code=-
record "$t_folder" || exit 1
TUNER_SERVICE=$t_mark:s:$t_token:watch sh -c "$8" tuner-watch "$t_folder" "$t_mark" "$t_token" "$t_expires" &
t_watch=$!
t_own_start=$t_sup_start
while :; do
    read -r t_next </proc/sys/kernel/random/uuid
    # Redirected below this shell, whose own word on a death by signal does not belong in the log.
    (exec sh -c "$7" tuner-server "$t_folder" "$t_mark" "$t_token" "$t_next" "$t_restarts" "$t_umask" "$t_delay" \
        >>"$t_folder/log" 2>&1)
    t_result=$?
    load "$t_folder"
    t_code=$t_result
    if [ -e "$t_folder/expired" ]; then t_end=expired
    elif [ -e "$t_folder/stop" ]; then t_end=stopped
    elif [ -e "$t_folder/refused" ]; then t_end=refused
    elif [ -n "$t_delay" ]; then t_end=restarting
    else t_end=failed; fi
    case $t_end in
    expired | stopped)
        t_phase=stopping
        insist
        bury 1
        ;;
    *)
        # What a dead server's children still hold, a port or memory, its successor needs.
        t_phase=$t_end
        insist
        bury 0
        ;;
    esac
    [ "$t_end" = restarting ] || break
    read -r t_up t_idle </proc/uptime
    t_until=$((${t_up%.*} * 100 + 1${t_up#*.} - 100 + t_delay))
    while [ ! -e "$t_folder/stop" ]; do
        read -r t_up t_idle </proc/uptime
        [ $((${t_up%.*} * 100 + 1${t_up#*.} - 100)) -lt "$t_until" ] || break
        nap
    done
    if [ -e "$t_folder/stop" ]; then
        t_end=stopped
        [ ! -e "$t_folder/expired" ] || t_end=expired
        break
    fi
    t_restarts=$((t_restarts + 1))
done
rm -f -- "$t_folder/order"
# Nobody is left to read it, and servers log their keys.
[ "$t_end" != expired ] || rm -f -- "$t_folder/log"
t_phase=$t_end
insist
[ "$t_end" != expired ] || (drop_lease)
signal_all KILL "$t_watch"
signal_all KILL $(carriers "$t_mark:s:$t_token:watch")
"""
)

SERVER = (
    COMMON
    + r"""
# FOLDER MARK TOKEN INVOCATION RESTARTS UMASK DELAY: becomes the server.
t_folder=$1 t_mark=$2 t_token=$3 t_next=$4 t_umask=$6 t_delay=$7
load "$t_folder"
look_at $$
t_phase=running t_restarts=$5 t_invocation=$t_next t_main=$$ t_main_start=$t_start t_code=-
record "$t_folder" || exit 1
# After the PID is known: whoever asks for a stop makes this file first and looks for the PID then.
[ ! -e "$t_folder/stop" ] || exit 143
trap ': >"$t_folder/refused"' EXIT
exec 3<"$t_folder/order" || exit 127
# It holds keys, and without restarts nobody reads it again.
[ -n "$t_delay" ] || rm -f -- "$t_folder/order"
# The setproctitle that SGLang uses overwrites the environment in /proc, and our mark with it, unless told.
export SPT_NOENV=1
set --
while IFS= read -r t_line <&3; do
    t_word=$(printf '%b.' "${t_line#?}")
    t_word=${t_word%.}
    case $t_line in
    E*) export "$t_word" ;;
    A*) set -- "$@" "$t_word" ;;
    esac
done
exec 3<&-
export TUNER_SERVICE="$t_mark:m:$t_token:$t_invocation"
if ! command -v "$1" >/dev/null 2>&1; then
    echo "not found on the PATH of this login, or not executable"
    exit 127
fi
umask "$t_umask"
# In dash and busybox a program that cannot be executed ends the shell, through the trap. In bash only the
# next line is reached, and only when it is asked for that.
shopt -s execfail 2>/dev/null
exec "$@"
: >"$t_folder/refused"
exit 126
"""
)

WATCH = (
    PROCESSES
    + r"""
# FOLDER MARK TOKEN EXPIRES: ends the server when its lease has run out, or when its supervisor is killed.
t_folder=$1 t_mark=$2 t_token=$3 t_expires=$4
t_missing=0
t_grace=10
while supervised "$t_folder"; do
    if [ -e "$t_folder/expired" ]; then
        t_grace=$((t_grace - 1))
        if [ "$t_grace" -lt 0 ]; then
            ! is_alive "$t_main" "$t_main_start" || kill -KILL "$t_main"
            signal_all KILL $(carriers "$t_mark:m:$t_token:") $(in_session "$t_sup" "$t_mark")
        fi
    elif [ -n "$t_expires" ]; then
        t_end=
        { read -r t_end <"$t_expires"; } 2>/dev/null
        case $t_end in
        '' | *[!0-9]*) t_missing=$((t_missing + 1)) t_end=0 ;;
        *) t_missing=0 ;;
        esac
        read -r t_up t_idle </proc/uptime
        # A lease that is being taken over is not there for a moment.
        if [ "$t_missing" -ge 3 ] || { [ "$t_missing" = 0 ] && [ "${t_up%.*}" -ge "$t_end" ]; }; then
            : >"$t_folder/expired"
            : >"$t_folder/stop"
            load "$t_folder"
            ! is_alive "$t_main" "$t_main_start" || kill -TERM "$t_main"
        fi
    fi
    sleep 1
done
load "$t_folder"
case $t_phase in starting | running | restarting | stopping)
    # The session's number is not used again while this process is in it.
    signal_all KILL $(carriers "$t_mark:m:$t_token:") $(in_session "$t_sup" "$t_mark")
    rm -f -- "$t_folder/order"
    ;;
esac
"""
)
