package attest

// The scripts that the probe box's sh runs. Each prints lines "key=value"; $1 … are its
// arguments. LC_ALL is C, so system errors are in English.

// scriptNamespaces prints the namespaces and the first range of the id map.
const scriptNamespaces = `for n in user mnt pid ipc uts net; do echo "$n=$(readlink /proc/self/ns/$n)"; done
read -r inside outside size </proc/self/uid_map; echo "uid=$inside $outside"`

// scriptMounts looks for the file $1 of the host, leaves files named $2 behind, and prints the
// identities of its directories and the mounts that propagate events.
const scriptMounts = `for d in / /etc /home /run /tmp /var; do if [ -e "$d" ]; then echo "dir=$d $(stat -c %d:%i "$d")"; fi; done
if [ -e "$1" ]; then echo "seen=$1"; fi
for d in / /usr /tmp /dev/shm; do { echo x >"$d/$2"; } 2>/dev/null && echo "made=$d"; done
while read -r l; do case "$l" in *" shared:"*|*" master:"*) echo "shared=$l";; esac; done </proc/self/mountinfo
echo "end=ok"`

// scriptNetwork prints what the box sees of networks, and tries to connect to port $1 of
// 127.0.0.1.
const scriptNetwork = `for f in dev route ipv6_route tcp unix; do if [ -r /proc/self/net/$f ]; then while read -r l; do echo "$f=$l"; done </proc/self/net/$f; fi; done
if [ -x /bin/bash ]; then /bin/bash -c "exec 3<>/dev/tcp/127.0.0.1/$1" 2>/dev/null && echo "connected=yes"
elif [ -x /usr/bin/python3 ]; then /usr/bin/python3 -c "import socket; socket.create_connection(('127.0.0.1', $1), 1)" 2>/dev/null && echo "connected=yes"
fi
echo "end=ok"`

// scriptFill writes $1 blocks to each of the directories $2 …, and prints how far it got and why
// it stopped.
const scriptFill = `n=$1; shift
for d; do
	e=$(dd if=/dev/zero of="$d/.fill" bs=64k count=$n 2>&1); s=$?
	echo "fill=$d $s $(stat -c %s "$d/.fill")"
	case "$e" in *"No space left on device"*|*"quota exceeded"*) echo "full=$d";; esac
	rm -f "$d/.fill"
done`

// scriptQuota writes $1 blocks to the directory $2, leaves it full, and prints which of the
// directories $3 … can still be written.
const scriptQuota = `n=$1; w=$2; shift 2
e=$(dd if=/dev/zero of="$w/.fill" bs=64k count=$n 2>&1); s=$?
echo "fill=$w $s $(stat -c %s "$w/.fill")"
case "$e" in *"No space left on device"*|*"quota exceeded"*) echo "full=$w";; esac
for d; do { echo x >"$d/.other"; } 2>/dev/null && [ -s "$d/.other" ] && echo "other=$d"; rm -f "$d/.other"; done
rm -f "$w/.fill"`

// scriptInodes creates up to $1 files in each of the directories $2 …. It redirects "true" and not
// ":", because a shell exits if a redirection of a special built-in fails.
const scriptInodes = `n=$1; shift
for d; do
	mkdir "$d/.many"; i=0
	while [ $i -lt $n ]; do { true >"$d/.many/$i"; } 2>"/tmp/.error" || break; i=$((i+1)); done
	echo "inodes=$d $i"
	case "$(cat /tmp/.error)" in *"No space left on device"*|*"quota exceeded"*) echo "full=$d";; esac
	rm -rf "$d/.many"
done`

// scriptCgroup prints the cgroups.
const scriptCgroup = `while read -r l; do echo "cgroup=$l"; done </proc/self/cgroup`

// scriptForks starts $1 processes, more than the box may have.
const scriptForks = `i=0; while [ $i -lt $1 ]; do sleep 60 & i=$((i+1)); done`

// scriptSpin consumes processor time.
const scriptSpin = `i=0; while [ $i -lt $1 ]; do i=$((i+1)); done`
