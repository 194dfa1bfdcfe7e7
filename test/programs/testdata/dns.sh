# shellcheck shell=sh
# A box asks 127.0.0.1, where nothing answers until the command has a server of its own.
mkfifo ready
python3 /opt/scripts/dnsserver.py >ready &
read -r _ <ready
echo dig "$(dig +short www.box.test A)"
echo dig over tcp "$(dig +tcp +short www.box.test A)"
getent ahosts www.box.test | awk '$2 == "STREAM" { print "glibc", $1 }' | sort
python3 -c 'import socket
print("python", sorted(a[4] for a in socket.getaddrinfo("www.box.test", 80, type=socket.SOCK_STREAM)))'
musl-gcc -static -o musl /opt/scripts/musl.c
./musl www.box.test
/opt/self/go
