package rootfs

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// TestSSHProxy: with bash, and with no more than BusyBox has, the script connects both ways, ends when the
// server does, delivers what the server sends after the end of the input, and says why the proxy refuses.
// With perl or python3 it passes that end on.
func TestSSHProxy(t *testing.T) {
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	port := fmt.Sprint(proxy.Addr().(*net.TCPAddr).Port)
	script := filepath.Join(t.TempDir(), "boxd-proxy")
	if err := os.WriteFile(script, []byte(strings.ReplaceAll(sshProxy, "3128", port)), 0o644); err != nil {
		t.Fatal(err)
	}
	busybox := testutil.RequireProgram(t, "busybox")
	few := t.TempDir()
	for _, applet := range []string{"sh", "cat", "tr", "nc"} {
		if err := os.Symlink(busybox, filepath.Join(few, applet)); err != nil {
			t.Fatal(err)
		}
	}
	// with returns a directory for PATH with some programs of the host.
	with := func(programs ...string) string {
		dir := t.TempDir()
		for _, name := range append(programs, "bash", "cat", "tr") {
			if err := os.Symlink(testutil.RequireProgram(t, name), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	none := t.TempDir() // for the host's sh: BusyBox's has an nc of its own
	run := func(path, host string) (*exec.Cmd, io.WriteCloser, *bufio.Reader, *strings.Builder) {
		t.Helper()
		shell := "/bin/sh"
		if path == few {
			shell = filepath.Join(few, "sh")
		}
		cmd := exec.CommandContext(t.Context(), shell, script, host, "22")
		cmd.Env = []string{"PATH=" + path}
		var said strings.Builder
		cmd.Stderr = &said
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, in, bufio.NewReader(out), &said
	}
	// answer accepts a connection and answers its request for want.
	answer := func(want, status string) *net.TCPConn {
		t.Helper()
		c, err := proxy.Accept()
		if err != nil {
			t.Fatal(err)
		}
		head := make([]byte, len("CONNECT  HTTP/1.1\r\nHost: \r\n\r\n")+2*len(want))
		if _, err := io.ReadFull(c, head); err != nil || string(head) != "CONNECT "+want+" HTTP/1.1\r\nHost: "+want+"\r\n\r\n" {
			t.Errorf("request %q, %v", head, err)
		}
		io.WriteString(c, "HTTP/1.1 "+status+"\r\nX-Field: x\r\n\r\n")
		return c.(*net.TCPConn)
	}
	paths := map[string]string{"bash and perl": with("perl"), "bash alone": with(), "nc": few}
	if real, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output(); err == nil {
		paths["bash and python3"] = with()
		if err := os.Symlink(strings.TrimSpace(string(real)), filepath.Join(paths["bash and python3"], "python3")); err != nil {
			t.Fatal(err)
		}
	}
	for name, path := range paths {
		for _, first := range []string{"server", "client"} {
			cmd, in, out, said := run(path, "2001:db8::1")
			c := answer("[2001:db8::1]:22", "200 Connection established")
			io.WriteString(c, "SSH-2.0-server\n")
			io.WriteString(in, "SSH-2.0-client\n")
			if line, err := out.ReadString('\n'); line != "SSH-2.0-server\n" {
				t.Errorf("%s: the client reads %q, %v", name, line, err)
			}
			if line, err := bufio.NewReader(c).ReadString('\n'); line != "SSH-2.0-client\n" {
				t.Errorf("%s: the server reads %q, %v", name, line, err)
			}
			if first == "server" {
				c.Close()
				if _, err := out.ReadByte(); err != io.EOF {
					t.Errorf("%s: %v, want the end of the output", name, err)
				}
				in.Close() // as ssh does then
			} else {
				in.Close()
				if strings.HasPrefix(name, "bash and") { // bash alone and BusyBox's nc cannot pass the end on
					io.Copy(io.Discard, c)
				}
				io.WriteString(c, "answer\n")
				c.Close()
				if rest, err := io.ReadAll(out); string(rest) != "answer\n" || err != nil {
					t.Errorf("%s: after the end of its input the client reads %q, %v", name, rest, err)
				}
			}
			if cmd.Wait(); said.Len() > 0 {
				t.Errorf("%s: %q", name, said)
			}
		}
		cmd, in, out, said := run(path, "git.example")
		answer("git.example:22", "403 boxd: git.example:22 is not allowed: no rule allows it").Close()
		if _, err := out.ReadByte(); err != io.EOF {
			t.Errorf("%s, refused: %v, want the end of the output", name, err)
		}
		in.Close()
		if cmd.Wait(); said.String() != "boxd: git.example:22 is not allowed: no rule allows it\n" {
			t.Errorf("%s, refused: %q", name, said)
		}
	}
	if sh, err := filepath.EvalSymlinks("/bin/sh"); err != nil || filepath.Base(sh) == "bash" {
		return
	}
	cmd, _, _, said := run(none, "git.example")
	if err := cmd.Wait(); err == nil || !strings.Contains(said.String(), "needs bash or nc") {
		t.Errorf("with neither: %v, %q", err, said)
	}
}

// TestSSHConfig: ssh uses the proxy where the variables of a network are, and not for the box itself.
func TestSSHConfig(t *testing.T) {
	ssh := testutil.RequireProgram(t, "ssh")
	file := filepath.Join(t.TempDir(), "ssh_config")
	if err := os.WriteFile(file, withProxy("ssh/ssh_config", []byte("Host *\n\tHashKnownHosts yes")), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host, proxy string
		want        bool
	}{
		{"git.example", "http://127.0.0.1:3128", true}, {"203.0.113.7", "http://127.0.0.1:3128", true}, {"git.example", "", false}, {"git.example", "http://proxy.example:1; x", false},
		{"localhost", "http://127.0.0.1:3128", false}, {"127.0.0.1", "http://127.0.0.1:3128", false}, {"::1", "http://127.0.0.1:3128", false},
	} {
		cmd := exec.Command(ssh, "-F", file, "-G", c.host)
		cmd.Env = append(os.Environ(), "all_proxy="+c.proxy)
		out, err := cmd.CombinedOutput()
		if got := strings.Contains(string(out), "\nproxycommand sh /etc/ssh/boxd-proxy "); err != nil || got != c.want {
			t.Errorf("%+v: %v\n%s", c, err, out)
		}
	}
}
