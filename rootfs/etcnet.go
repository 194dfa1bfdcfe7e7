package rootfs

import (
	"path"
	"strings"
)

// Most programs find the proxy of a box's network by variables of their commands. These files
// lead those to it that have no variable. They are in every box, because a session can get or lose its network while its
// box lives, and change nothing where the variables are missing, or where nothing can be reached anyway.

// sshConfig is added to the ssh_config of the OpenSSH client. boxd writes all_proxy into the
// environment of commands that have a network. In images it is a file of its own, which the ssh_config of most
// distributions includes. The host's root has none, because ssh refuses to include a file whose owner is neither root nor the
// user, and in a box nobody owns the files of the host.
const sshConfig = `# boxd: a box with a network has a proxy, and no other way out.
Match host *,!localhost,!127.*,!::1 exec "test x$all_proxy = xhttp://127.0.0.1:3128"
	ProxyCommand sh /etc/ssh/boxd-proxy %h %p
`

// sshProxy is what sshConfig runs.
const sshProxy = `# boxd: connects standard input and output to HOST PORT through the proxy of the box's network.
# It needs bash, or any nc: few systems have an nc that knows proxies.
case $1 in *:*) at="[$1]:$2" ;; *) at="$1:$2" ;; esac
ask() { printf 'CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n' "$at" "$at"; }
answer() {
	read -r _ status || exit 1
	while read -r line && [ ${#line} -gt 1 ]; do :; done
	case $status in
	200*) ;;
	*) printf '%s\n' "${status#* }" | tr -d '\r' >&2; exit 1 ;;
	esac
}
if [ -z "${BASH_VERSION-}" ] && command -v bash >/dev/null; then exec bash "$0" "$@"; fi
# The process that reads from the network is the only one that keeps standard output open, so its end ends ssh.
if [ -n "${BASH_VERSION-}" ]; then
	exec 3<>/dev/tcp/127.0.0.1/3128 || exit 1
	ask >&3
	answer <&3
	cat <&3 3>&- &
	trap 'kill $!; exit 1' HUP INT TERM
	exec >&3 3>&-
	cat
	# The server may answer at the end of its input. bash cannot shut down one direction of a socket.
	perl -e 'shutdown STDOUT, 1 or die' 2>/dev/null || python3 -c 'import socket; socket.socket(fileno=1).shutdown(1)' 2>/dev/null
	wait
elif command -v nc >/dev/null; then
	case $(nc -h 2>&1) in *-N[[:space:]]*) half=-N ;; *) half= ;; esac # OpenBSD's
	exec 4>&1 5<&0 >&2
	{ exec <&5 4>&- 5<&-; ask; cat; } | { exec 4>&- 5<&- nc $half 127.0.0.1 3128; } | { exec >&4 4>&- 5<&-; answer; cat; } &
	exec 4>&- 5<&- </dev/null
	wait
else
	echo 'boxd: ssh through the proxy of the network needs bash or nc' >&2
	exit 1
fi
`

// javaProxy is added to the net.properties of a JDK, which reads no variable that leads to a
// proxy without printing a line. Without a network, connections fail with "Connection refused".
const javaProxy = `
# Added by boxd: a box with a network has a proxy, and no other way out.
http.proxyHost=127.0.0.1
http.proxyPort=3128
https.proxyHost=127.0.0.1
https.proxyPort=3128
http.nonProxyHosts=localhost|127.*|[::1]|0.0.0.0|` + DefaultHostname + `
`

// withProxy returns the content of a file of the host's /etc as boxes see it.
func withProxy(name string, content []byte) []byte {
	switch {
	case name == "ssh/ssh_config":
		return append(content, "\n"+sshConfig...)
	case path.Base(name) == "net.properties" && strings.Contains(name, "openjdk"):
		return append(content, javaProxy...)
	}
	return content
}
