package ledger

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// scene is the box whose objects are counted, seen from the host.
type scene struct {
	id      string         // of the box
	proc    string         // /proc/PID of its first process
	reports map[int]report // what the processes of its command claim, by number
}

// counter reads how much is held of a kind, in bytes or objects. A counter of the whole host
// is compared with its value before.
type counter func(*scene) (int64, error)

// claimed is the number of bytes that system calls have allocated and not freed. If data is what is held,
// it is the counter.
func claimed(s *scene) (n int64, _ error) {
	for _, r := range s.reports {
		n += r.bytes
	}
	return n, nil
}

// made is the number of objects that system calls have made.
func made(s *scene) (n int64, _ error) {
	for _, r := range s.reports {
		n += r.objects
	}
	return n, nil
}

// slab counts the bytes in use of slab caches. The kernel merges caches of one size, so that
// one may stand under the name of another: then it is found in /sys/kernel/slab.
func slab(names ...string) counter {
	return func(*scene) (sum int64, _ error) {
		sizes, err := readSlabs()
		if err != nil {
			return 0, err
		}
		for _, name := range names {
			size, found := sizes[name]
			if !found {
				if size, err = readMergedSlab(name); errors.Is(err, fs.ErrNotExist) {
					continue // this kernel has no such objects
				} else if err != nil {
					return 0, err
				}
			}
			sum += size
		}
		return sum, nil
	}
}

// kmallocs counts the bytes in use of the caches that the kernel serves kmalloc from
// without charging anybody. What is charged comes from caches named kmalloc-cg.
func kmallocs(*scene) (sum int64, _ error) {
	sizes, err := readSlabs()
	for name, size := range sizes {
		if strings.HasPrefix(name, "kmalloc-") && !strings.HasPrefix(name, "kmalloc-cg-") && !strings.HasPrefix(name, "kmalloc-rcl-") {
			sum += size
		}
	}
	return sum, err
}

// readSlabs reads slabinfo(5).
func readSlabs() (map[string]int64, error) {
	sizes := map[string]int64{}
	err := eachLine("/proc/slabinfo", func(f []string) error {
		if len(f) < 4 || f[0] == "#" || f[0] == "slabinfo" {
			return nil
		}
		size, err := product(f[1], f[3])
		sizes[f[0]] = size
		return err
	})
	return sizes, err
}

func readMergedSlab(name string) (int64, error) {
	dir := filepath.Join("/sys/kernel/slab", name)
	objects, err := os.ReadFile(filepath.Join(dir, "objects"))
	if err != nil {
		return 0, err
	}
	size, err := os.ReadFile(filepath.Join(dir, "slab_size"))
	if err != nil {
		return 0, err
	}
	// "84 N0=84": the sum, then each node.
	sum, _, _ := strings.Cut(strings.TrimSpace(string(objects)), " ")
	return product(sum, strings.TrimSpace(string(size)))
}

func product(a, b string) (int64, error) {
	x, err := strconv.ParseInt(a, 10, 64)
	if err != nil {
		return 0, err
	}
	y, err := strconv.ParseInt(b, 10, 64)
	return x * y, err
}

// meminfo reads a field of /proc/meminfo in bytes.
func meminfo(field string) counter {
	return func(*scene) (n int64, _ error) {
		return n, eachLine("/proc/meminfo", func(f []string) (err error) {
			if f[0] == field+":" {
				n, err = product(f[1], "1024")
			}
			return err
		})
	}
}

// hugePages counts the pages of the host's pool that are taken or promised.
func hugePages(*scene) (n int64, _ error) {
	return n, eachLine("/proc/meminfo", func(f []string) error {
		sign := map[string]string{"HugePages_Total:": "1", "HugePages_Free:": "-1", "HugePages_Rsvd:": "1"}[f[0]]
		if sign == "" {
			return nil
		}
		pages, err := product(f[1], sign)
		n += pages
		return err
	})
}

// number reads the first number of a file below /proc/sys.
func number(name string) counter {
	return func(*scene) (n int64, _ error) {
		return n, eachLine(filepath.Join("/proc/sys", name), func(f []string) (err error) {
			n, err = strconv.ParseInt(f[0], 10, 64)
			return err
		})
	}
}

// sockstat reads a value of the box's /proc/net/sockstat, times unit: "TCP" "tw".
func sockstat(protocol, key string, unit int64) counter {
	return func(s *scene) (n int64, _ error) {
		return n, eachLine(s.proc+"/net/sockstat", func(f []string) (err error) {
			for i := 1; f[0] == protocol+":" && i+1 < len(f); i += 2 {
				if f[i] == key {
					n, err = product(f[i+1], strconv.FormatInt(unit, 10))
				}
			}
			return err
		})
	}
}

// sockets counts the sockets of protocols in the box's network namespace: also those that no
// descriptor is left of, and those that have not been accepted.
func sockets(protocols ...string) counter { return socketsTimes("1", protocols) }

// socketBytes is sockets, times the size of each.
func socketBytes(protocols ...string) counter { return socketsTimes("", protocols) }

func socketsTimes(unit string, protocols []string) counter {
	return func(s *scene) (sum int64, _ error) {
		return sum, eachLine(s.proc+"/net/protocols", func(f []string) error {
			for _, p := range protocols {
				if f[0] != p {
					continue
				}
				size := unit
				if size == "" {
					size = f[1]
				}
				n, err := product(f[2], size)
				if err != nil {
					return err
				}
				sum += n
			}
			return nil
		})
	}
}

// queued sums the buffers of the sockets in one of the box's files below /proc/net: received,
// waiting as an error, and not sent yet.
func queued(files ...string) counter {
	return func(s *scene) (sum int64, _ error) {
		for _, file := range files {
			err := eachLine(s.proc+"/net/"+file, func(f []string) error {
				if file == "netlink" {
					n, err := strconv.ParseInt(f[4], 10, 64) // Rmem
					if f[4] == "Rmem" {
						return nil
					}
					sum += n
					return err
				}
				tx, rx, isQueue := strings.Cut(f[4], ":")
				if !isQueue || len(f) < 10 || !strings.HasSuffix(f[0], ":") {
					return nil // the heading
				}
				for _, hex := range []string{tx, rx} {
					n, err := strconv.ParseInt(hex, 16, 64)
					if err != nil {
						return err
					}
					sum += n
				}
				return nil
			})
			if err != nil {
				return 0, err
			}
		}
		return sum, nil
	}
}

// lines counts the lines of one of the box's files below /proc/net, without a heading, times
// the size of what each shows.
func lines(file string, size int64) counter {
	return func(s *scene) (n int64, _ error) {
		n = -size
		err := eachLine(s.proc+"/net/"+file, func([]string) error { n += size; return nil })
		return max(n, 0), err
	}
}

// inGroup reads a file of the box's own control group. Below work/ are its commands only; the
// group itself also has PID 1, whose Go runtime may start a thread at any moment.
func inGroup(names ...string) counter {
	return func(s *scene) (int64, error) {
		for _, name := range names {
			for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
				found, err := filepath.Glob(filepath.Join(root, "boxd", "*."+s.id, name))
				if err != nil {
					return 0, err
				}
				if len(found) == 0 {
					continue
				}
				content, err := os.ReadFile(found[0])
				if err != nil {
					return 0, err
				}
				return strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
			}
		}
		return 0, fmt.Errorf("box %q has no %q in its control groups", s.id, names)
	}
}

// least is the lowest of several reads: while the kernel refuses a fork, it has already counted it
// (pids_try_charge in kernel/cgroup/pids.c), so one read can be one above the limit.
func least(c counter) counter {
	return func(s *scene) (int64, error) {
		lowest := int64(math.MaxInt64)
		for range 5 {
			n, err := c(s)
			if err != nil {
				return 0, err
			}
			lowest = min(lowest, n)
		}
		return lowest, nil
	}
}

// charge is what the box's memory cgroup has to pay for.
var charge = inGroup("memory.current", "memory.usage_in_bytes")

// sum adds counters up.
func sum(counters ...counter) counter {
	return func(s *scene) (n int64, _ error) {
		for _, c := range counters {
			part, err := c(s)
			if err != nil {
				return 0, err
			}
			n += part
		}
		return n, nil
	}
}

// eachLine calls f with the fields of each line that has any.
func eachLine(name string, f func([]string) error) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		if fields := strings.Fields(scanner.Text()); len(fields) > 0 {
			if err := f(fields); err != nil {
				return fmt.Errorf("%q: line %q: %w", name, scanner.Text(), err)
			}
		}
	}
	return scanner.Err()
}
