"""Shell functions that the scripts of this package begin with.

Processes are known by ``TUNER_SERVICE`` in the environment they were executed with, which /proc shows to
their owner: ``MARK:m:TOKEN:INVOCATION`` for the server's, ``MARK:s:TOKEN`` for the supervisor's own. Every
PID that is read from a file goes with its start time (field 22 of /proc/PID/stat) and the id of the boot,
and is compared before it is believed.

Variables begin with ``t_``: any other name might be in the login's environment, which the server gets.
"""

COMMON = r"""
# Fills t_state, t_session and t_start for PID $1; fails when there is no such process.
look_at() {
    t_line=
    # The command may hold anything, even a line end: what counts stands in the last line, after its ')'.
    { while IFS= read -r t_part || [ -n "$t_part" ]; do t_line=$t_part; done <"/proc/$1/stat"; } 2>/dev/null
    [ -n "$t_line" ] || return 1
    set -- ${t_line##*) }
    t_state=$1 t_session=$4 t_start=${20}
}

# Whether PID $1, started at $2, lives; a zombie does not.
is_alive() {
    look_at "$1" && [ "$t_start" = "$2" ] && [ "$t_state" != Z ] && [ "$t_state" != X ]
}

nap() { sleep 0.05 2>/dev/null || sleep 1; }

read_boot() { read -r t_now </proc/sys/kernel/random/boot_id; }

# Reads the status in folder $1; fails when there is none.
load() {
    t_boot= t_sup= t_sup_start= t_phase=none t_restarts=0 t_invocation=- t_main=- t_main_start=- t_code=-
    { read -r t_boot t_sup t_sup_start t_phase t_restarts t_invocation t_main t_main_start t_code \
        <"$1/status"; } 2>/dev/null
}

status_line() {
    printf '%s %s %s %s %s %s %s %s %s\n' "$t_boot" "$t_sup" "$t_sup_start" "$t_phase" "$t_restarts" \
        "$t_invocation" "$t_main" "$t_main_start" "$t_code"
}

# Replaces the status in folder $1; fails when it cannot be written.
record() { { status_line >"$1/status.new" && mv -f -- "$1/status.new" "$1/status"; } 2>/dev/null; }

# Whether the start in folder $1 has a living supervisor; its status is loaded.
supervised() {
    read_boot
    load "$1" && [ "$t_boot" = "$t_now" ] && is_alive "$t_sup" "$t_sup_start"
}
"""

PROCESSES = (
    COMMON
    + r"""
# A grep that does not look behind a zero byte would find nothing of ours.
t_grep=
! printf 'a\000b' | grep -q -z -F -e b 2>/dev/null || t_grep=-z

# Prints PID and mark of each process that was executed with a TUNER_SERVICE that begins with $1. Each
# environment is read once: that of a process which is just being executed is empty for a moment.
marks() {
    if [ -n "$t_grep" ]; then
        grep -s -z -o -H -e "TUNER_SERVICE=$1.*" /proc/[0-9]*/environ | tr '\000' '\n'
    else
        for t_file in /proc/[0-9]*/environ; do
            { tr '\000' '\n' <"$t_file" | grep -e "^TUNER_SERVICE=$1" | head -n 1 | while read -r t_line; do
                echo "$t_file:$t_line"
            done; } 2>/dev/null
        done
    fi | while IFS=: read -r t_file t_line; do
        t_file=${t_file#/proc/}
        echo "${t_file%/environ} ${t_line#TUNER_SERVICE=}"
    done
}

# Prints the PIDs alone.
carriers() {
    marks "$1" | while read -r t_pid t_line; do echo "$t_pid"; done
}

# Prints the PIDs of session $1 that are not a supervisor's of mark $2: also those that lost their environment.
in_session() {
    # What stands behind the last ')' of a line: state, parent, group, session. The command may hold anything.
    for t_file in $(grep -l -s -E -e "\) [^ZX] -?[0-9]+ -?[0-9]+ $1 [^)]*$" /proc/[0-9]*/stat); do
        t_file=${t_file%/stat}
        { tr '\000' '\n' <"$t_file/environ" | grep -q -e "^TUNER_SERVICE=$2:s:"; } 2>/dev/null && continue
        # It is there still: the grep above finds itself.
        look_at "${t_file#/proc/}" && [ "$t_session" = "$1" ] && echo "${t_file#/proc/}"
    done
}

# Sends signal $1 to each PID that follows.
signal_all() {
    t_signal=$1
    shift
    for t_pid; do kill "-$t_signal" "$t_pid" 2>/dev/null; done
}
"""
)
