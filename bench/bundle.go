package bench

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/engine/spec"
)

// Host IDs of the users in the bundle, outside the ranges that boxd leases.
const (
	bundleIDs  = 0x60000000
	bundleSize = 65536
)

type object = map[string]any

// makeBundle writes an OCI bundle (OCI runtime specification 1.0.2) for runc and crun, with
// the namespaces, the root and the limits of a default box.
func (b *bench) makeBundle() (string, error) {
	bundle := filepath.Join(b.scratch, "bundle")
	root := filepath.Join(bundle, "rootfs")
	mounts, err := makeBundleRoot(root)
	if err != nil {
		return "", err
	}
	ids := []object{{"containerID": 0, "hostID": bundleIDs, "size": bundleSize}}
	config := object{
		"ociVersion": "1.0.2",
		"hostname":   "box",
		"root":       object{"path": "rootfs", "readonly": true},
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "cwd": "/", "args": []string{command},
			"env": []string{"PATH=/usr/bin:/bin"}, "noNewPrivileges": true,
		},
		"mounts": mounts,
		"linux": object{
			"uidMappings": ids, "gidMappings": ids,
			"namespaces": []object{
				{"type": "user"}, {"type": "mount"}, {"type": "pid"},
				{"type": "network"}, {"type": "ipc"}, {"type": "uts"},
			},
			"cgroupsPath": "/" + b.id(),
			"resources": object{
				"memory": object{"limit": spec.DefaultMemory},
				"pids":   object{"limit": spec.DefaultPIDs},
				"cpu":    object{"quota": 100_000, "period": 100_000},
			},
		},
	}
	text, err := json.MarshalIndent(config, "", "\t")
	if err != nil {
		return "", err
	}
	return bundle, os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o644)
}

// makeBundleRoot makes a directory with mount points and returns the mounts.
func makeBundleRoot(root string) ([]object, error) {
	bind := []string{"rbind", "ro", "nosuid", "nodev"}
	mounts := []object{
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755", "size=65536k"}},
		{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "nodev", "size=65536k"}},
	}
	dirs, links := systemDirs()
	for _, dir := range dirs {
		mounts = append(mounts, object{"destination": dir, "type": "bind", "source": dir, "options": bind})
	}
	for _, dir := range append(dirs, "/proc", "/dev", "/tmp") {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return nil, err
		}
	}
	for link, target := range links {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			return nil, err
		}
	}
	return mounts, nil
}
