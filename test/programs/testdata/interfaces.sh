# shellcheck shell=sh
ip -o address | awk '{ print "ip", $2, $4 }'
python3 -c 'import socket; print("python", socket.if_nameindex())'
node -e 'const all = require("os").networkInterfaces();
console.log("node", JSON.stringify(Object.fromEntries(Object.entries(all).map(([name, a]) => [name, a.map(x => x.address)]))))'
cat >Interfaces.java <<'PROGRAM'
import java.net.*;
import java.util.*;
public class Interfaces {
	public static void main(String[] args) throws Exception {
		for (NetworkInterface i : Collections.list(NetworkInterface.getNetworkInterfaces())) {
			List<String> addresses = new ArrayList<>();
			for (InetAddress a : Collections.list(i.getInetAddresses())) addresses.add(a.getHostAddress());
			System.out.println("java " + i.getName() + " " + String.join(" ", addresses));
		}
	}
}
PROGRAM
java Interfaces.java
