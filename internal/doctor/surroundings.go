package doctor

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/pathin"
)

// Surroundings are what the doctor itself lives in: a container, say, that takes away what
// boxes need. They explain other facts and are never a finding of their own.
type Surroundings struct {
	// Container is what this seems to be in, such as "Docker" or "Kubernetes"; empty if it
	// looks like a host. It is a guess, for the words of an advice.
	Container string
	// InnerUserNS says that root here is not the host's root.
	InnerUserNS bool
	// Capabilities are the effective ones, a bit for each (capabilities(7)).
	Capabilities uint64
	// SeccompFilter says that system calls of this process are filtered.
	SeccompFilter bool
	// LSM is the confinement of this process by AppArmor or SELinux, empty if there is
	// none, such as "docker-default (enforce)".
	LSM string
	// Mounts are those that this process sees.
	Mounts []linux.MountInfo
	// CommandLine is that of the kernel, LSMs the security modules that it runs.
	CommandLine, LSMs string
	// Config are the options that the kernel was built with, nil if nobody says.
	Config map[string]string
	// Distribution is the ID of os-release(5).
	Distribution string
}

// Capabilities that building boxes needs, by their number (capabilities(7)).
const (
	capSetUID   = 7
	capNetAdmin = 12
	capSysAdmin = 21
)

func lookAround(release string) Surroundings {
	status := readLine("/proc/self/status")
	s := Surroundings{
		Container:     container(exists, os.Getenv, readLine("/run/systemd/container")),
		InnerUserNS:   strings.Join(strings.Fields(readLine("/proc/self/uid_map")), " ") != "0 0 4294967295",
		SeccompFilter: statusField(status, "Seccomp") == "2",
		LSM:           strings.Trim(readLine("/proc/self/attr/current"), "\x00"),
		CommandLine:   readLine("/proc/cmdline"),
		LSMs:          readLine("/sys/kernel/security/lsm"),
		Distribution:  distribution(readLine("/etc/os-release")),
		Config:        readConfig(release),
	}
	s.Capabilities, _ = strconv.ParseUint(statusField(status, "CapEff"), 16, 64)
	if s.LSM == "unconfined" || strings.HasPrefix(s.LSM, "unconfined_u:") || s.LSM == "kernel" {
		s.LSM = ""
	}
	s.Mounts, _ = linux.ReadMountInfo() // what cannot be read explains nothing
	return s
}

func exists(name string) bool { _, err := os.Lstat(name); return err == nil }

// container guesses in what kind of container this is, by the marks that their runtimes
// leave.
func container(exists func(string) bool, getenv func(string) string, systemd string) string {
	switch {
	case getenv("KUBERNETES_SERVICE_HOST") != "" || exists("/var/run/secrets/kubernetes.io"):
		return "Kubernetes"
	case exists("/run/.containerenv"):
		return "Podman"
	case exists("/.dockerenv"):
		return "Docker"
	case strings.HasPrefix(systemd, "lxc") || exists("/dev/lxd/sock"):
		return "LXC"
	case systemd != "":
		return systemd
	}
	return ""
}

// statusField is a field of /proc/PID/status.
func statusField(status, name string) string {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func distribution(release string) string {
	for line := range strings.Lines(release) {
		if value, ok := strings.CutPrefix(line, "ID="); ok {
			return strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	return ""
}

// maxConfig bounds what is read of a kernel's configuration.
const maxConfig = 4 << 20

// readConfig finds what the running kernel was built with, nil if it is not told.
func readConfig(release string) map[string]string {
	if text, err := os.ReadFile("/proc/config.gz"); err == nil {
		if z, err := gzip.NewReader(bytes.NewReader(text)); err == nil {
			return parseConfig(io.LimitReader(z, maxConfig))
		}
	}
	for _, name := range []string{"/boot/config-" + release, "/lib/modules/" + release + "/config"} {
		if f, err := os.Open(name); err == nil {
			defer f.Close()
			return parseConfig(io.LimitReader(f, maxConfig))
		}
	}
	return nil
}

func parseConfig(r io.Reader) map[string]string {
	config := map[string]string{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), "="); ok && strings.HasPrefix(name, "CONFIG_") {
			config[name] = value
		}
	}
	return config
}

// lacksOption says that the kernel was certainly built without an option.
func (s Surroundings) lacksOption(name string) bool { return s.Config != nil && s.Config[name] == "" }

func (s Surroundings) has(capability int) bool { return s.Capabilities>>capability&1 != 0 }

// mountOf is the mount that a path is on.
func (s Surroundings) mountOf(name string) (found linux.MountInfo) {
	for _, m := range s.Mounts {
		if pathin.In(name, m.Point) && len(m.Point) >= len(found.Point) {
			found = m
		}
	}
	return found
}

// readOnlyCgroup is a mount of a cgroup file system that cannot be written.
func (s Surroundings) readOnlyCgroup() (linux.MountInfo, bool) {
	for _, m := range s.Mounts {
		if strings.HasPrefix(m.FSType, "cgroup") && flagged(m, "ro") {
			return m, true
		}
	}
	return linux.MountInfo{}, false
}

// masked are the mounts that cover parts of /proc.
func (s Surroundings) masked() (points []string) {
	for _, m := range s.Mounts {
		if strings.HasPrefix(m.Point, "/proc/") && m.FSType != "binfmt_misc" && m.FSType != "autofs" {
			points = append(points, m.Point)
		}
	}
	return points
}

func flagged(m linux.MountInfo, flag string) bool {
	for _, f := range m.Flags {
		if f == flag {
			return true
		}
	}
	return false
}

// option is the value of a parameter of the kernel's command line, of the last one.
func (s Surroundings) option(name string) (value string, ok bool) {
	for _, word := range strings.Fields(s.CommandLine) {
		if v, found := strings.CutPrefix(word, name+"="); found {
			value, ok = v, true
		}
	}
	return value, ok
}

// noexec is the mount flag that keeps a program from being executed.
func (s Surroundings) noexec(program string) (linux.MountInfo, bool) {
	m := s.mountOf(path.Clean(program))
	return m, flagged(m, "noexec")
}

// refused says that err is a refusal for lack of rights, and not the lack of a feature.
func refused(err error) bool { return errors.Is(err, os.ErrPermission) }
