package langbot

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/internal/testutil"
)

// compose is what these tests look at of a Compose file.
type compose struct {
	Services map[string]struct {
		Image, Cgroup string
		Privileged    bool
		Environment   map[string]string
		Volumes       []string
		ExtraHosts    []string `yaml:"extra_hosts"`
		Build         struct{ Context, Dockerfile string }
	}
	Volumes map[string]any
}

const recipes = "../../packaging/compose/"

func readYAML(t *testing.T, name string, to any) {
	t.Helper()
	text, err := os.ReadFile(recipes + name)
	if err == nil {
		err = yaml.Unmarshal(text, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// loadConfig loads the configuration that a recipe gives to boxd.
func loadConfig(t *testing.T, file string, env map[string]string) config.Config {
	t.Helper()
	c, err := config.Load(file, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestComposeRecipes: both sides have the shared directory by one name, in the roots of
// boxd, and LangBot asks where boxd listens, with a secret.
func TestComposeRecipes(t *testing.T) {
	const shared, secret = "/srv/langbot/box", "${LANGBOT_BOX_CONTROL_TOKEN:?put it into .env}"
	for _, recipe := range []string{"host", "container"} {
		var c compose
		readYAML(t, recipe+"/compose.yaml", &c)
		bot := c.Services["langbot"]
		box := c.Services["langbot_box"]
		env := bot.Environment
		if !slices.Contains(bot.Volumes, shared+":"+shared) || env["BOX__LOCAL__HOST_ROOT"] != shared || env["BOX__LOCAL__ALLOWED_MOUNT_ROOTS"] != shared {
			t.Errorf("%s: the shared directory differs: %v, %v", recipe, bot.Volumes, env)
		}
		if env["LANGBOT_BOX_CONTROL_TOKEN"] != secret {
			t.Errorf("%s: secret of LangBot %q", recipe, env["LANGBOT_BOX_CONTROL_TOKEN"])
		}
		var boxd config.Config
		endpoint := "http://host.docker.internal:5410"
		if recipe == "host" {
			boxd = loadConfig(t, recipes+"host/config.yaml", nil)
			if !slices.Contains(bot.ExtraHosts, "host.docker.internal:host-gateway") || boxd.Langbot.TokenFile == "" {
				t.Errorf("%v, %+v", bot.ExtraHosts, boxd.Langbot)
			}
			var launcher struct {
				Roots []string `yaml:"mount_roots"`
			}
			readYAML(t, "host/launcher.yaml", &launcher)
			if len(launcher.Roots) != 1 || launcher.Roots[0] != shared+":no-root-owned" {
				t.Errorf("roots of the launcher: %q", launcher.Roots)
			}
		} else {
			endpoint = "http://langbot_box:5410"
			if box.Environment["LANGBOT_BOX_CONTROL_TOKEN"] != secret {
				t.Errorf("secret of boxd %q", box.Environment["LANGBOT_BOX_CONTROL_TOKEN"])
			}
			box.Environment["LANGBOT_BOX_CONTROL_TOKEN"] = strings.Repeat("s", 32)
			boxd = loadConfig(t, "", box.Environment)
			for _, v := range []string{shared + ":" + shared, "boxd:" + config.DefaultStateDir, config.DefaultRuntimeDir + ":" + config.DefaultRuntimeDir, "/dev:/dev"} {
				if !slices.Contains(box.Volumes, v) {
					t.Errorf("boxd's container does not have %s: %v", v, box.Volumes)
				}
			}
			if _, ok := c.Volumes["boxd"]; !ok || !box.Privileged || box.Cgroup != "host" {
				t.Errorf("%+v", box)
			}
			if _, err := os.Stat(filepath.Join(recipes, "container", box.Build.Context, box.Build.Dockerfile)); err != nil {
				t.Error(err)
			}
		}
		if env["BOX__RUNTIME__ENDPOINT"] != endpoint || !strings.HasSuffix(boxd.Langbot.Listen, ":5410") || !slices.Equal(boxd.Policy.AllowedMountRoots, []string{shared}) {
			t.Errorf("%s: %s, boxd listens on %s and allows %q", recipe, env["BOX__RUNTIME__ENDPOINT"], boxd.Langbot.Listen, boxd.Policy.AllowedMountRoots)
		}
	}
}

// container runs script as a container engine would in a privileged container with the
// host's cgroups: own processes, mounts, network and root, which is this machine's with an
// overlay on top. dir has what the container's volumes are.
const container = `set -e
root=$1/root
mount -t tmpfs -o mode=0755 tmpfs "$root"
mkdir "$root/u" "$root/w" "$root/r"
mount -t overlay -o "lowerdir=/,upperdir=$root/u,workdir=$root/w" overlay "$root/r"
cd "$root/r"
mkdir -p var/lib/boxd srv/langbot/box run tmp
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mkdir run/boxd old
mount --bind "$1/state" var/lib/boxd
mount --bind "$1/shared" srv/langbot/box
mount --bind "$1/run" run/boxd
mount --rbind /dev dev
mount --rbind /sys sys
cp "$BOXD" usr/local/bin/boxd
cp "$INIT" "${INIT%/*}/boxd-agent" "${INIT%/*}/boxd-unpacker" usr/local/bin
pivot_root . old
mount -t proc proc /proc
umount -l /old
ip link set lo up
boxd serve >>/var/lib/boxd/log 2>&1 &
boxd status --wait 60s >/dev/null
eval "$2"
`

// TestInContainer: boxd runs in a container as the recipe has it, answers LangBot's door
// there, and a container that is started anew has the workspaces of the one before and
// removes its cgroups.
func TestInContainer(t *testing.T) {
	t.Parallel()
	testutil.RequireRoot(t)
	unshare := testutil.RequireProgram(t, "unshare")
	boxd, init := testutil.BuildBinaries(t)
	var c compose
	readYAML(t, "container/compose.yaml", &c)
	dir, err := os.MkdirTemp("", "boxd-container-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, sub := range []string{"root", "state", "shared", "run"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(dir, "shared"), sharedOwner, sharedOwner); err != nil {
		t.Fatal(err)
	}
	run := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), unshare, "--mount", "--propagation", "slave", "--pid", "--ipc", "--uts", "--net", "--fork", "--kill-child", "sh", "-c", container, "sh", dir, script)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "BOXD=" + boxd, "INIT=" + init}
		for name, value := range c.Services["langbot_box"].Environment {
			if name == "LANGBOT_BOX_CONTROL_TOKEN" {
				value = strings.Repeat("s", 32)
			}
			cmd.Env = append(cmd.Env, name+"="+value)
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			log, _ := os.ReadFile(filepath.Join(dir, "state/log"))
			t.Fatalf("%v: %s%s\n%s", err, out, stderr.String(), log)
		}
		return string(out)
	}
	// LangBot asks again and again until the service is ready.
	const ready = `python3 -c '
import time, urllib.error, urllib.request
end = time.monotonic() + 120
while True:
    try:
        print(urllib.request.urlopen("http://127.0.0.1:5410/readyz").status)
        break
    except urllib.error.HTTPError as e:
        if e.code != 503 or time.monotonic() > end:
            raise
    time.sleep(0.1)
'; `
	out := run(ready + `boxd exec lab -- sh -c 'id -u; echo kept > note'`)
	if out != "200\n0\n" {
		t.Errorf("%q", out)
	}
	// The first one's boxes went with it, and left their cgroups.
	out = run(`boxd exec lab -- cat note 2>/dev/null; boxd sessions rm lab`)
	if !strings.HasPrefix(out, "kept\n") {
		t.Errorf("%q", out)
	}
	if log, err := os.ReadFile(filepath.Join(dir, "state/log")); err != nil || bytes.Contains(log, []byte("level=ERROR")) {
		t.Errorf("%v: %s", err, log)
	}
}
