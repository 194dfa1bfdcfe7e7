package cgroups

import "testing"

func TestMemoryParts(t *testing.T) {
	var d Detail
	readNumbers("anon 1\nfile 2\nshmem 3\nfile_mapped 4\nactive_anon 5\ninactive_anon 6\nactive_file 7\ninactive_file 8\nslab 9\n", d.memoryParts(false))
	want := Detail{Anon: 1, File: 2, Shmem: 3, Mapped: 4, ActiveAnon: 5, InactiveAnon: 6, ActiveFile: 7, InactiveFile: 8}
	if d != want {
		t.Errorf("cgroup2: %+v", d)
	}
	// On v1 the keys without "total_" leave out the slots below.
	d = Detail{}
	readNumbers("cache 90\nrss 91\ntotal_cache 2\ntotal_rss 1\ntotal_shmem 3\ntotal_mapped_file 4\ntotal_active_anon 5\ntotal_inactive_anon 6\ntotal_active_file 7\ntotal_inactive_file 8\n", d.memoryParts(true))
	if d != want {
		t.Errorf("v1: %+v", d)
	}
}
