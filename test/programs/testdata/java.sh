# shellcheck shell=sh
cat >Server.java <<'PROGRAM'
import java.net.*;
import java.util.concurrent.*;
public class Server {
	public static void main(String[] args) throws Exception {
		ExecutorService threads = Executors.newFixedThreadPool(8);
		CountDownLatch running = new CountDownLatch(8);
		for (int i = 0; i < 8; i++) threads.submit(() -> { running.countDown(); running.await(); return null; });
		running.await();
		ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
		listener.setReceiveBufferSize(1 << 20);
		threads.submit(() -> {
			try (Socket s = listener.accept()) { s.getOutputStream().write(new byte[1000000]); }
			return null;
		});
		try (Socket s = new Socket()) {
			s.setReceiveBufferSize(1 << 20);
			s.setSendBufferSize(1 << 20);
			s.connect(listener.getLocalSocketAddress());
			System.out.println("client got " + s.getInputStream().readAllBytes().length + " bytes, " + 8 + " threads");
		}
		threads.shutdown();
	}
}
PROGRAM
# The warning that there are no large pages goes to standard output.
java -XX:+UseLargePages Server.java | grep -v '\[warning\]\[pagesize\]'
