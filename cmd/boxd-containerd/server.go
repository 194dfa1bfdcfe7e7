package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/boxd/boxd/engine/containerd/proto"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/oneline"
)

// The oldest containerd that boxd is tested with is Debian 12's. An older one is refused: nobody knows
// what it leaves behind when it is killed.
const (
	oldestMajor = 1
	oldestMinor = 6
)

// cleanTime bounds the removal of a container whose create failed.
const cleanTime = 2 * time.Second

// specType is the type of a runtime specification in containerd, see typeurl in its client.
const specType = "types.containerd.io/opencontainers/runtime-spec/1/Spec"

// server answers the requests of the launcher.
type server struct {
	address, state string

	mu     sync.Mutex
	client *client.Client // nil until it is needed, and after containerd was not reached
}

// errNoEngine marks errors after which other requests would fail as well.
var errNoEngine = errors.New("containerd does not serve")

// answer carries out one request.
func (s *server) answer(typ byte, body []byte) (r proto.Reply) {
	var q proto.Request
	err := json.Unmarshal(body, &q)
	if err == nil && q.Within <= 0 {
		err = errors.New("request without a time")
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), proto.Namespace), q.Within)
		defer cancel()
		var c *client.Client
		if c, err = s.connect(); err == nil {
			r, err = s.handle(ctx, c, typ, q)
		}
		if err != nil && (ctx.Err() != nil || errdefs.IsDeadlineExceeded(err)) {
			err = fmt.Errorf("%w: %q does not answer within %v", errNoEngine, s.address, q.Within.Round(100*time.Millisecond))
		} else if errdefs.IsUnavailable(err) {
			s.drop(c)
			// What is wrong at the address now says more than what the client saw of it.
			if _, now := s.connect(); now != nil {
				err = now
			} else {
				err = fmt.Errorf("%w: %w", errNoEngine, err)
			}
		}
	}
	if err != nil {
		r.Failure = &proto.Failure{Message: oneline.Error(err), NoEngine: errors.Is(err, errNoEngine)}
	}
	return r
}

func (s *server) handle(ctx context.Context, c *client.Client, typ byte, q proto.Request) (r proto.Reply, err error) {
	switch typ {
	case proto.TypeState:
		r.State, err = state(ctx, c)
	case proto.TypeCreate:
		r.PID, err = create(ctx, c, q.ID, q.Create)
	case proto.TypeStart:
		var task client.Task
		if task, err = taskOf(ctx, c, q.ID); err == nil {
			err = task.Start(ctx)
		}
	case proto.TypeList:
		var found []client.Container
		found, err = c.Containers(ctx, fmt.Sprintf("labels.%q==%q", proto.LabelState, s.state))
		for _, container := range found {
			r.IDs = append(r.IDs, container.ID())
		}
	case proto.TypeStats:
		r.Stats, err = usage(ctx, c, q.ID)
	case proto.TypeRemove:
		var clean bool
		if clean, err = remove(ctx, c, q.ID); err == nil && !clean {
			err = endShim(q.ID)
		}
	default:
		err = fmt.Errorf("request of unknown type %d", typ)
	}
	return r, err
}

// connect returns the client of this process, which it makes if necessary. The client connects
// to containerd by itself, again and again; what connect checks is whether it may.
func (s *server) connect() (*client.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		return s.client, nil
	}
	probe, err := s.dial(context.Background(), "")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoEngine, err)
	}
	probe.Close()
	conn, err := grpc.NewClient("passthrough:///containerd",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a Unix socket, whose peer dial checks
		grpc.WithContextDialer(s.dial))
	if err != nil {
		return nil, err
	}
	s.client, err = client.NewWithConn(conn)
	return s.client, err
}

// drop forgets a client that has not reached containerd: it would wait longer and longer before
// it tries again.
func (s *server) drop(c *client.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == c && c != nil {
		s.client.Close()
		s.client = nil
	}
}

// dial connects to containerd, if that is a process of root: whoever it is gets to say which
// process is PID 1 of a box, and what runs as root in the shim's place.
func (s *server) dial(ctx context.Context, _ string) (net.Conn, error) {
	var st unix.Stat_t
	if err := unix.Lstat(s.address, &st); err != nil {
		return nil, &os.PathError{Op: "lstat", Path: s.address, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return nil, fmt.Errorf("%q: must be a socket", s.address)
	case st.Uid != 0 || st.Mode&0o002 != 0:
		return nil, fmt.Errorf("socket %q: it belongs to uid %d and has mode %#o, must be root's and not writable by others", s.address, st.Uid, st.Mode&0o7777)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", s.address)
	if err != nil {
		return nil, err
	}
	peer, err := linux.PeerOf(conn.(*net.UnixConn))
	if err == nil && peer.UID != 0 {
		err = fmt.Errorf("socket %q: uid %d listens there, must be root", s.address, peer.UID)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func state(ctx context.Context, c *client.Client) (proto.State, error) {
	v, err := c.Version(ctx)
	if err != nil {
		return proto.State{}, errgrpc.ToNative(err)
	}
	// Such as "1.6.20~ds1" and "v2.1.9".
	majorText, rest, _ := strings.Cut(strings.TrimPrefix(v.Version, "v"), ".")
	minorText, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(majorText)
	minor, merr := strconv.Atoi(minorText)
	if err != nil || merr != nil || major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return proto.State{}, fmt.Errorf("%w: it is containerd %q, must be %d.%d or later", errNoEngine, v.Version, oldestMajor, oldestMinor)
	}
	return proto.State{Version: v.Version}, nil
}

// create makes a container and its task, and returns PID 1, which waits for Start. The container
// has no snapshot and no image: its root is in the spec, and only its runtime sees it.
func create(ctx context.Context, c *client.Client, id string, m *proto.Create) (pid int, err error) {
	if m == nil {
		return 0, errors.New("request without a container")
	}
	if _, err := state(ctx, c); err != nil {
		return 0, err
	}
	if _, err := remove(ctx, c, id); err != nil {
		return 0, fmt.Errorf("removing an earlier container %q: %w", id, err)
	}
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
			defer cancel()
			_, _ = remove(ctx, c, id) // the launcher asks for it again
		}
	}()
	runtimeOptions, err := typeurl.MarshalAny(&options.Options{BinaryName: m.Binary, Root: m.Root})
	if err != nil {
		return 0, err
	}
	// Not with NewContainer, which takes a lease for a day in case there is an image or a snapshot. If
	// containerd is killed meanwhile, nobody gives that back.
	_, err = c.ContainerService().Create(ctx, containers.Container{
		ID:      id,
		Labels:  m.Labels,
		Runtime: containers.RuntimeInfo{Name: m.Runtime, Options: runtimeOptions},
		Spec:    &anypb.Any{TypeUrl: specType, Value: m.Spec},
	})
	if err != nil {
		return 0, fmt.Errorf("creating container: %w", err)
	}
	container, err := c.LoadContainer(ctx, id)
	if err != nil {
		return 0, fmt.Errorf("creating container: %w", err)
	}
	task, err := container.NewTask(ctx, cio.NullIO)
	if err != nil {
		return 0, fmt.Errorf("creating task: %w", err)
	}
	return int(task.Pid()), nil
}

func taskOf(ctx context.Context, c *client.Client, id string) (client.Task, error) {
	container, err := c.LoadContainer(ctx, id)
	if err != nil {
		return nil, err
	}
	return container.Task(ctx, nil)
}

// remove removes a container and its task, if they exist. It kills PID 1. clean means that there
// was a task, whose shim ends with it.
func remove(ctx context.Context, c *client.Client, id string) (clean bool, err error) {
	container, err := c.LoadContainer(ctx, id)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	task, err := container.Task(ctx, nil)
	if err == nil {
		err = removeTask(ctx, task)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return false, fmt.Errorf("deleting task: %w", err)
	}
	clean = err == nil
	if err := container.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
		return clean, fmt.Errorf("deleting container: %w", err)
	}
	return clean, nil
}

// endShim kills the shim of a container that has no task. If containerd is killed while it creates
// a task, the next containerd keeps the shim and the bundle but knows no task to delete, so
// nothing would ever end the shim. When it ends, containerd removes the bundle.
func endShim(id string) error {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || !isShim(pid, id) {
			continue
		}
		pidfd, err := linux.PidfdOpen(pid)
		if err != nil {
			continue // it has ended
		}
		if isShim(pid, id) { // pidfd is of this process if it still is
			err = linux.PidfdSignal(pidfd, unix.SIGKILL)
		}
		pidfd.Close()
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("ending shim %d: %w", pid, err)
		}
	}
	return nil
}

// isShim reports whether process pid is the shim of a container of boxd's. Commands of the same
// program are not: with "delete" containerd cleans up after a shim, and then removes the bundle.
func isShim(pid int, id string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	args := strings.Split(string(line), "\x00")
	has := func(option, value string) bool {
		at := slices.Index(args, option)
		return at > 0 && at+1 < len(args) && args[at+1] == value
	}
	var st unix.Stat_t
	command := slices.Contains(args, "start") || slices.Contains(args, "delete")
	return strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") && !command && has("-namespace", proto.Namespace) && has("-id", id) &&
		unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) == nil && st.Uid == 0
}

func removeTask(ctx context.Context, task client.Task) error {
	ended, err := task.Wait(ctx)
	if err != nil {
		return err
	}
	if err := task.Kill(ctx, unix.SIGKILL); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	select {
	case status := <-ended:
		if err := status.Error(); err != nil {
			return err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	_, err = task.Delete(ctx)
	return err
}

// usage reads the metrics of a task, which come in types of containerd/cgroups/v3.
func usage(ctx context.Context, c *client.Client, id string) (*proto.Stats, error) {
	task, err := taskOf(ctx, c, id)
	if err != nil {
		return nil, err
	}
	metric, err := task.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	metrics, err := typeurl.UnmarshalAny(metric.Data)
	if err != nil {
		return nil, err
	}
	switch m := metrics.(type) {
	case *v1.Metrics:
		// Its CPU time is of the controller cpuacct, which is a hierarchy of its own on some
		// hosts. boxd makes no cgroups there, so the figure may be that of the whole host.
		if m.GetMemory().GetUsage() != nil && m.GetPids() != nil {
			return &proto.Stats{Memory: int64(m.GetMemory().GetUsage().GetUsage()), PIDs: int64(m.GetPids().GetCurrent())}, nil
		}
	case *v2.Metrics:
		if m.GetMemory() != nil && m.GetPids() != nil && m.GetCPU() != nil {
			cpu := time.Duration(m.GetCPU().GetUsageUsec()) * time.Microsecond
			return &proto.Stats{Memory: int64(m.GetMemory().GetUsage()), PIDs: int64(m.GetPids().GetCurrent()), CPU: &cpu}, nil
		}
	}
	return nil, fmt.Errorf("metrics of container %q: type %T without figures of memory and processes", id, metrics)
}
