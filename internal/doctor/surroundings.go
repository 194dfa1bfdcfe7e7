package doctor

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/pathin"
)

// Surroundings describe where the doctor runs, such as a container that withholds what boxes need.
// They explain other facts and are never a finding of their own.
type Surroundings struct {
	// Container is the kind of container that this seems to be, such as "Docker" or "Kubernetes";
	// empty if it looks like a host. It is a guess, used to word advice.
	Container string
	// InnerUserNS means that root here is not the host's root.
	InnerUserNS bool
	// Capabilities are the effective ones, a bit for each (capabilities(7)).
	Capabilities uint64
	// SeccompFilter means that system calls of this process are filtered.
	SeccompFilter bool
	// LSM is the confinement of this process by AppArmor or SELinux, such as
	// "docker-default (enforce)"; empty if there is none.
	LSM string
	// Mounts are the mounts that this process sees.
	Mounts []linux.MountInfo
	// CommandLine is the kernel's, and LSMs are the security modules that it runs.
	CommandLine, LSMs string
	// Config has the options that the kernel was built with; nil if unknown.
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
	s.Mounts, _ = linux.ReadMountInfo() // without it, mounts explain nothing
	return s
}

func exists(name string) bool { _, err := os.Lstat(name); return err == nil }

// container guesses the kind of container from the marks that runtimes leave.
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

// statusField returns a field of /proc/PID/status.
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

// maxConfig bounds how much of a kernel's configuration is read.
const maxConfig = 4 << 20

// readConfig returns the options that the running kernel was built with, or nil.
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

// lacksOption reports whether the kernel was certainly built without an option.
func (s Surroundings) lacksOption(name string) bool { return s.Config != nil && s.Config[name] == "" }

func (s Surroundings) has(capability int) bool { return s.Capabilities>>capability&1 != 0 }

// mountOf returns the mount that a path is on.
func (s Surroundings) mountOf(name string) (found linux.MountInfo) {
	for _, m := range s.Mounts {
		if pathin.In(name, m.Point) && len(m.Point) >= len(found.Point) {
			found = m
		}
	}
	return found
}

// readOnlyCgroup returns a read-only mount of a cgroup file system, if there is one.
func (s Surroundings) readOnlyCgroup() (linux.MountInfo, bool) {
	for _, m := range s.Mounts {
		if strings.HasPrefix(m.FSType, "cgroup") && slices.Contains(m.Flags, "ro") {
			return m, true
		}
	}
	return linux.MountInfo{}, false
}

// procMountPoints are directories of /proc that are always empty. A mount on one covers nothing, so
// the kernel still grants a new /proc (mnt_already_visible in fs/namespace.c, and the callers of
// proc_create_mount_point and register_sysctl_mount_point).
var procMountPoints = []string{"/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd", "/proc/xen", "/proc/openprom"}

// masked returns the mounts that cover parts of /proc.
func (s Surroundings) masked() (points []string) {
	for _, m := range s.Mounts {
		if strings.HasPrefix(m.Point, "/proc/") && !slices.Contains(procMountPoints, m.Point) {
			points = append(points, m.Point)
		}
	}
	return points
}

// option returns the value of a parameter of the kernel's command line. The last one counts.
func (s Surroundings) option(name string) (value string, ok bool) {
	for _, word := range strings.Fields(s.CommandLine) {
		if v, found := strings.CutPrefix(word, name+"="); found {
			value, ok = v, true
		}
	}
	return value, ok
}

// noexec returns the mount that a program is on, and whether it forbids executing programs.
func (s Surroundings) noexec(program string) (linux.MountInfo, bool) {
	m := s.mountOf(path.Clean(program))
	return m, slices.Contains(m.Flags, "noexec")
}

// refused reports whether err means a lack of rights, rather than of a feature.
func refused(err error) bool { return errors.Is(err, os.ErrPermission) }
