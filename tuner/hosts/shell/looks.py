"""What is asked of a host without systemd while a server runs or has run: constant POSIX sh."""

from tuner.hosts.shell.words import COMMON, PROCESSES

PLACE = r"""
# DIRECTORY. Prints on which file system the folder lies or would lie, and where in that the mount begins:
# another container's folder of the same name is another one.
# Looked at first, because an automounter may have to mount it.
[ ! -d "$1/." ] || :
t_length=0 t_place='0:0 /'
while read -r t_id t_parent t_device t_root t_on t_rest; do
    case $t_on in /) t_prefix=/ ;; *) t_prefix=$t_on/ ;; esac
    case $1/ in "$t_prefix"*) ;; *) continue ;; esac
    [ "${#t_prefix}" -ge "$t_length" ] || continue
    t_length=${#t_prefix} t_place="$t_device $t_root"
done </proc/self/mountinfo
printf '%s\n' "$t_place"
"""

LOOK = (
    COMMON
    + r"""
# FOLDER. Prints: boot id, whether the supervisor lives, whether the main process does, whether a stop was
# asked for; then the status line. First whether it lives, then what it says: it writes before it ends.
t_supervised=0 t_living=0 t_flag=0
read_boot
if load "$1" && [ "$t_boot" = "$t_now" ]; then
    ! is_alive "$t_sup" "$t_sup_start" || t_supervised=1
    ! is_alive "$t_main" "$t_main_start" || t_living=1
fi
[ ! -e "$1/stop" ] || t_flag=1
load "$1"
printf '%s %s %s %s\n' "$t_now" "$t_supervised" "$t_living" "$t_flag"
status_line
"""
)

READ = (
    COMMON
    + r"""
# FOLDER FIRST BYTES. Prints whether more may come, and an encoding that no transport changes; then the piece.
t_more=0
! supervised "$1" || t_more=1
if [ ! -e "$1/log" ]; then
    echo "$t_more none"
elif command -v base64 >/dev/null 2>&1; then
    echo "$t_more base64"
    tail -c "+$2" "$1/log" | head -c "$3" | base64
else
    echo "$t_more hex"
    tail -c "+$2" "$1/log" | head -c "$3" | od -An -v -tx1
fi
"""
)

STOP = (
    PROCESSES
    + r"""
# DIRECTORY MARK. Asks every server to end and prints the tokens of those that were asked just now.
t_kept=' '
for t_folder in "$1"/start-*; do
    supervised "$t_folder" || continue
    t_kept="$t_kept$(carriers "$2:m:${t_folder##*/start-}:") "
    case $t_phase in starting | running | restarting) ;; *) continue ;; esac
    # On disk before the signal: whoever sees the death knows whose it is.
    : >"$t_folder/stop"
    load "$t_folder"
    [ "$t_phase" != failed ] && [ ! -e "$t_folder/asked" ] || continue
    echo "${t_folder##*/start-}"
    ! is_alive "$t_main" "$t_main_start" || kill -TERM "$t_main"
    : >"$t_folder/asked"
done
# Nobody would record how those end whose supervisor is gone.
for t_pid in $(carriers "$2:m:"); do
    for t_one in $t_kept; do [ "$t_one" != "$t_pid" ] || continue 2; done
    kill -TERM "$t_pid" 2>/dev/null
done
:
"""
)

KILL = (
    PROCESSES
    + r"""
# DIRECTORY MARK WHOM KEEP. WHOM: 'servers', or 'all' with their supervisors. The start KEEP is spared.
for t_folder in "$1"/start-*; do
    [ "${t_folder##*/start-}" != "$4" ] && supervised "$t_folder" || continue
    ! is_alive "$t_main" "$t_main_start" || kill -KILL "$t_main" 2>/dev/null
    signal_all KILL $(in_session "$t_sup" "$2")
done
marks "$2:" | while read -r t_pid t_value; do
    case $t_value in
    *:"$4" | *:"$4":*) continue ;;
    "$2":s:*) [ "$3" = all ] || continue ;;
    esac
    kill -KILL "$t_pid" 2>/dev/null
done
:
"""
)

SCAN = (
    PROCESSES
    + r"""
# DIRECTORY MARK TOKEN WORDS. Prints a line for each process of ours: s(upervisor) or m(ember), whether it
# belongs to the start TOKEN, PID, and with WORDS the command line.
show() {
    look_at "$3" || return
    case $t_state in Z | X) return ;; esac
    printf '%s %s %s ' "$1" "$2" "$3"
    [ -z "$t_words" ] || { tr '\000\n' '  ' <"/proc/$3/cmdline" | head -c 300; } 2>/dev/null
    echo
}
t_words=$4
marks "$2:" | while read -r t_pid t_value; do
    t_own=0
    case $t_value in *:"$3" | *:"$3":*) t_own=1 ;; esac
    case $t_value in
    "$2":s:*) show s "$t_own" "$t_pid" ;;
    *) show m "$t_own" "$t_pid" ;;
    esac
done
for t_folder in "$1"/start-*; do
    supervised "$t_folder" || continue
    t_own=0
    [ "${t_folder##*/start-}" != "$3" ] || t_own=1
    for t_pid in $(in_session "$t_sup" "$2"); do show m "$t_own" "$t_pid"; done
done
:
"""
)

FORGET = (
    COMMON
    + r"""
# DIRECTORY: deletes what starts without a living supervisor have left. Processes are found without it.
for t_folder in "$1"/start-*; do
    supervised "$t_folder" || rm -rf -- "$t_folder"
done
"""
)
