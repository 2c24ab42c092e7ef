#!/bin/bash
# A private systemd for tests: boots one beside the machine's own, and takes it down when stdin ends.
#
#   systemd_lab.sh check                     whether this machine can do it: exit status 0, or 77 and the reason
#   systemd_lab.sh boot [SOURCE:TARGET...]   print "PID CGROUPS" once it has booted, and wait for the end of stdin
#
# PID is systemd's as the machine sees it: `nsenter --target PID --mount --uts --ipc --net --pid --cgroup` runs a
# command beside it, and /proc/PID/root is its file system. That is a copy-on-write view of the machine's, with each
# SOURCE bound read-only to its TARGET, and with its own /run, /tmp and /dev. CGROUPS is "hybrid" or "unified".
#
# Why nothing is left behind: all its processes are in one PID namespace, which the kernel clears when systemd is
# killed; all its mounts are in one mount namespace, which goes with the last process; all it writes is on a tmpfs.
# What is left are empty cgroups, children of the caller's own, and a log: they are removed here, or at the next boot
# if this script was killed. It cannot outlive us: unshare has --kill-child, and a parent-death signal from us.
set -euo pipefail
shopt -s nullglob

SELF=$(readlink -f "${BASH_SOURCE[0]}")
PROGRAM=/usr/lib/systemd/systemd
V1_DIR=/sys/fs/cgroup
BOOT_S=30
NAMESPACES=(--mount --uts --ipc --net --pid --cgroup)
# No namespace fences these in: the clock, modules, a reboot, the kernel's log.
BOUNDS=-sys_time,-sys_module,-sys_boot,-syslog
UNITS="basic.target sysinit.target sockets.target paths.target timers.target slices.target local-fs.target
  local-fs-pre.target network.target multi-user.target shutdown.target umount.target final.target
  emergency.target time-set.target systemd-journald.service systemd-journald.socket
  systemd-journald-dev-log.socket"

warn() { printf 'systemd_lab: %s\n' "$*" >&2; }
skip() { printf '%s\n' "$*"; exit 77; }

check() {
  local tool
  [ "$(id -u)" = 0 ] || skip "needs root"
  for tool in unshare nsenter setpriv mount findmnt pivot_root systemctl journalctl; do
    command -v $tool >/dev/null || skip "no $tool"
  done
  [ -x $PROGRAM ] || skip "no systemd"
  [ -n "$(v2_mount)" ] || skip "cgroup2 is not mounted"
  grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || skip "this kernel has no overlayfs"
  [ -w "$(own_cgroups | sed -n 's/^v2 //p' | tr -d ' ')" ] || skip "cgroup2 is mounted read-only"
  unshare "${NAMESPACES[@]}" --fork true 2>/dev/null || skip "unshare is refused (a container without CAP_SYS_ADMIN?)"
}

# ---------------------------------------------------------------- cgroups, on the machine's side

v2_mount() { findmnt -n --first-only -t cgroup2 -o TARGET; }

# A line per hierarchy, "KIND FOLDER CONTROLLERS": v2 or v1, and the folder of the cgroup that we are in.
own_cgroups() {
  local controllers path root target kind where
  while IFS=: read -r _ controllers path; do
    kind=v1 where=(-t cgroup -O "$controllers")
    [ -n "$controllers" ] || kind=v2 where=(-t cgroup2)
    read -r root target < <(findmnt -n --first-only "${where[@]}" -o FSROOT,TARGET) || continue
    [ "$root" = / ] || path=${path#"$root"}
    [ -d "$target$path" ] || path=
    printf '%s %s %s\n' $kind "$(readlink -m "$target$path")" "$controllers"
  done </proc/self/cgroup
}

# Hybrid where v1 holds the memory controller, so that limits hold; systemd 258 and later know v2 only.
cgroup_mode() {
  local newest
  newest=$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
  if [ "$newest" -ge 258 ] || ! findmnt -t cgroup >/dev/null ||
     grep -qw memory "$(v2_mount)/cgroup.controllers"; then
    printf unified
  else
    printf hybrid
  fi
}

CGROUPS=() ENABLED=()

make_cgroups() {
  local kind controllers folder top each
  while read -r kind folder controllers; do
    for each in "$folder"/runnerd-lab.*; do
      [ -e "/proc/${each##*.}" ] || remove_tree "$each"
    done
    [ "$kind $MODE" != "v1 unified" ] || continue
    if [ "$kind" = v2 ]; then
      top=$(v2_mount)
      for each in memory pids cpu; do
        if grep -qw $each "$folder/cgroup.controllers" && ! grep -qw $each "$folder/cgroup.subtree_control"; then
          { echo +$each >"$folder/cgroup.subtree_control"; } 2>/dev/null && ENABLED+=("$each $folder")
        fi
      done
      # Only a cgroup without processes may pass controllers down; the topmost is free of that rule.
      if grep -qw memory "$top/cgroup.subtree_control" && ! grep -qw memory "$folder/cgroup.subtree_control"; then
        folder=$top
      fi
    fi
    mkdir "$folder/runnerd-lab.$$"
    CGROUPS+=("$folder/runnerd-lab.$$")
    if [[ $controllers == *cpuset* ]]; then  # a new one of v1 has no CPUs, and takes nobody
      cat "$folder/cpuset.cpus" >"$folder/runnerd-lab.$$/cpuset.cpus"
      cat "$folder/cpuset.mems" >"$folder/runnerd-lab.$$/cpuset.mems"
    fi
  done < <(own_cgroups)
}

remove_tree() {
  local i
  for ((i = 0; i < 100; i++)); do  # its last processes may still be on their way out
    find "$1" -depth -type d -exec rmdir {} + 2>/dev/null && return
    sleep 0.02
  done
  warn "cannot remove $1"
}

# ---------------------------------------------------------------- the machine's side

LOG='' UNSHARE_PID='' INIT_PID=''

boot() {
  local i each child='' state=''
  MODE=$(cgroup_mode)
  trap stop EXIT
  trap 'exit 1' HUP INT TERM
  for each in "${TMPDIR:-/tmp}"/runnerd-lab.*; do [ -e "/proc/${each##*.}" ] || rm -f "$each"; done
  LOG=$(mktemp -t --suffix=.$$ runnerd-lab.XXXXXX)
  make_cgroups
  setpriv --pdeathsig KILL bash "$SELF" enter "${CGROUPS[*]}" "$MODE" "$@" </dev/null >"$LOG" 2>&1 &
  UNSHARE_PID=$!
  for ((i = 0; i < BOOT_S * 50; i++)); do
    kill -0 $UNSHARE_PID 2>/dev/null || fail "its first process has ended"
    read -r child _ <"/proc/$UNSHARE_PID/task/$UNSHARE_PID/children" || true
    # Not one of the children that come before; and not before its own root is there.
    if [ "$(cat "/proc/$child/comm" 2>/dev/null)" = systemd ] && [ -S "/proc/$child/root/run/systemd/private" ]; then
      INIT_PID=$child
      state=$(nsenter --target "$INIT_PID" "${NAMESPACES[@]}" systemctl is-system-running 2>/dev/null) || true
      case $state in running|degraded) break ;; esac
    fi
    sleep 0.02
  done
  case $state in
    running) ;;
    degraded) fail "$(nsenter --target "$INIT_PID" "${NAMESPACES[@]}" systemctl --failed --plain --no-legend)" ;;
    *) fail "still '$state' after $BOOT_S s" ;;
  esac
  echo "$INIT_PID $MODE"
  read -r _ || true  # the caller's end of stdin: it wants no more of us, or is dead
}

fail() {
  warn "no systemd has booted: $1"
  tail -20 "$LOG" >&2
  exit 1
}

stop() {
  local each
  trap '' HUP INT TERM
  # One of the two; the kernel sees to all the others, and unshare waits for that.
  if [ -n "$UNSHARE_PID" ]; then
    kill -KILL "${INIT_PID:-$UNSHARE_PID}" 2>/dev/null || true
    wait "$UNSHARE_PID" 2>/dev/null || true
  fi
  for each in "${CGROUPS[@]}"; do remove_tree "$each"; done
  for each in "${ENABLED[@]}"; do { echo "-${each% *}" >"${each#* }/cgroup.subtree_control"; } 2>/dev/null || true; done
  rm -f "$LOG"
}

enter() {  # CGROUPS MODE BIND...
  local each
  for each in $1; do echo $$ >"$each/cgroup.procs"; done
  shift
  exec unshare "${NAMESPACES[@]}" --propagation private --fork --kill-child=KILL -- bash "$SELF" init "$@"
}

# ---------------------------------------------------------------- inside: PID 1, before it becomes systemd

init() {  # MODE BIND...
  local mode=$1 new=/run/root
  shift
  exec 9</run  # for what is to be bound from there
  mount -t tmpfs -o mode=755 runnerd-lab /run
  mkdir /run/upper /run/work $new
  mount -t overlay runnerd-lab -o lowerdir=/,upperdir=/run/upper,workdir=/run/work $new
  mount_kernel
  mount_cgroups "$mode"
  mount_dev
  mount -t tmpfs -o mode=755,nosuid,nodev runnerd-lab $new/run
  mount -t tmpfs -o mode=1777,nosuid,nodev runnerd-lab $new/tmp
  bind "$@"
  write_units
  mkdir $new/run/old
  cd $new
  pivot_root . run/old
  umount -l /run/old
  rmdir /run/old
  cd /
  exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 container=runnerd-lab \
    SYSTEMD_UNIT_PATH=/run/systemd/system.control:/run/systemd/transient:/etc/systemd/system:/run/systemd/system:/usr/local/lib/systemd/system:/run/lab/units \
    SYSTEMD_GENERATOR_PATH=/run/lab/none SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/run/lab/none \
    setpriv --bounding-set=$BOUNDS \
    $PROGRAM --system --unit=lab.target --show-status=no --log-target=journal-or-kmsg
}

mount_kernel() {
  mount -t proc -o nosuid,nodev,noexec proc $new/proc
  mount --bind $new/proc/sys $new/proc/sys
  mount -o remount,bind,ro $new/proc/sys
  [ ! -e /proc/sysrq-trigger ] || mount --bind /dev/null $new/proc/sysrq-trigger
  mount -t sysfs -o ro,nosuid,nodev,noexec sysfs $new/sys
}

mount_cgroups() {  # MODE
  local options=nosuid,nodev,noexec controllers name each
  if [ "$1" = unified ]; then
    mount -t cgroup2 -o $options cgroup2 $new$V1_DIR
    return
  fi
  mount -t tmpfs -o mode=755,$options tmpfs $new$V1_DIR
  while IFS=: read -r _ controllers _; do
    name=${controllers#name=}
    mkdir "$new$V1_DIR/${name:=unified}"
    if [ "$name" = unified ]; then
      mount -t cgroup2 -o $options cgroup2 "$new$V1_DIR/$name"
    else
      mount -t cgroup -o "$options,$controllers" cgroup "$new$V1_DIR/$name"
    fi
    case $name in *,*) for each in ${name//,/ }; do ln -s "$name" "$new$V1_DIR/$each"; done ;; esac
  done </proc/self/cgroup
}

mount_dev() {  # systemd makes /dev/log and more, which must not appear on the machine
  local each
  mount -t tmpfs -o mode=755,nosuid tmpfs $new/dev
  for each in null zero full random urandom tty; do
    : >$new/dev/$each
    mount --bind /dev/$each $new/dev/$each
  done
  mkdir $new/dev/pts $new/dev/shm
  mount -t devpts -o newinstance,nosuid,noexec,mode=620,ptmxmode=666 devpts $new/dev/pts
  mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs $new/dev/shm
  ln -s pts/ptmx $new/dev/ptmx
  ln -s /proc/self/fd $new/dev/fd
  : >$new/dev/console
  mount --bind /proc/self/fd/2 $new/dev/console
}

bind() {  # SOURCE:TARGET...
  local each source
  for each; do
    source=${each%%:*}
    case $source in /run/*) source=/proc/self/fd/9/${source#/run/} ;; esac
    mkdir -p "$new${each#*:}"
    mount --bind "$source" "$new${each#*:}"
    mount -o remount,bind,ro "$new${each#*:}"
  done
  exec 9<&-
}

write_units() {  # a few of the distribution's, and nothing that is enabled on the machine
  local from=/usr/lib/systemd/system units=$new/run/lab/units each
  mkdir -p $units/sockets.target.wants $new/run/lab/none
  for each in $UNITS; do
    cp "$from/$each" $units/ || continue
    case $each in *.socket) ln -s "../$each" $units/sockets.target.wants/ ;; esac
  done
  printf '%s\n' '[Unit]' 'Requires=basic.target' 'Wants=systemd-journald.service' \
    'After=basic.target systemd-journald.service' 'AllowIsolate=yes' >$units/lab.target
  rm -rf $new/etc/systemd $new/var/log/journal
  mkdir -p $new/etc/systemd/system $new/etc/systemd/journald.conf.d
  printf '%s\n' '[Journal]' Storage=volatile RateLimitBurst=0 ReadKMsg=no Audit=no >$new/etc/systemd/journald.conf.d/lab.conf
  echo runnerd-lab >$new/etc/hostname
  hostname runnerd-lab
  # Without one, systemd would take this for the first boot ever.
  grep -Eqs '^[0-9a-f]{32}$' $new/etc/machine-id || tr -d - </proc/sys/kernel/random/uuid >$new/etc/machine-id
}

case ${1:-} in
  check|boot|enter|init) "$@" ;;
  *) sed -n '2,5p' "$SELF" | cut -c3-; exit 2 ;;
esac
