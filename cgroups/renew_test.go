package cgroups

import "testing"

// renewableStats are the files of a slot after a command that left nothing.
func renewableStats() map[int]string {
	return map[int]string{
		StatEvents: "populated 0\n", StatCPU: "usage_usec 900\nuser_usec 600\nsystem_usec 300\n", StatMemoryPeak: "0300000\n", StatMemoryEvents: "oom_kill 0\n",
		StatPIDsPeak: "1\n", StatPIDsEvents: "max 0\n", StatCharge: "4096\n", StatBoxEvents: "populated 0\n",
	}
}

// TestWhatIsRenewed: each figure that a renewed slot would get wrong prevents it.
func TestWhatIsRenewed(t *testing.T) {
	for name, c := range map[string]struct {
		file       int
		text       string // "-" removes the file
		renewable  bool
		successful bool
	}{
		"nothing left":          {StatEvents, "populated 0\n", true, true},
		"two processes":         {StatPIDsPeak, "2\n", false, false},
		"a kill":                {StatMemoryEvents, "oom_kill 1\n", false, false},
		"a refused fork":        {StatPIDsEvents, "max 1\n", false, false},
		"much processor time":   {StatCPU, "user_usec 9000\nsystem_usec 2000\n", false, false},
		"a peak that stays":     {StatMemoryPeak, "0900000\n", true, false}, // the write of "0" changes nothing in this file
		"much charged":          {StatCharge, "900000\n", true, false},
		"no pids.peak":          {StatPIDsPeak, "-", false, false},
		"no account of swap":    {StatCharge, "-", false, false},
		"block devices":         {StatIO, "8:0 rbytes=1 wbytes=0\n", false, false},
		"throttling of its own": {StatThrottled, "throttled_usec 0\n", false, false},
	} {
		files := renewableStats()
		if files[c.file] = c.text; c.text == "-" {
			delete(files, c.file)
		}
		s := fakeStats(t, files)
		u, err := s.Read()
		check(t, err)
		if got := s.Renewable(u); got != c.renewable {
			t.Errorf("%s: renewable %v, want %v", name, got, c.renewable)
		}
		if c.renewable && s.Renew() != c.successful {
			t.Errorf("%s: renewed %v, want %v", name, !c.successful, c.successful)
		}
	}
}

func TestRenewedSlotCountsFromZero(t *testing.T) {
	s := fakeStats(t, renewableStats())
	if !s.Renew() {
		t.Fatal("not renewed")
	}
	rewrite(t, s, StatCPU, "usage_usec 950\nuser_usec 640\nsystem_usec 310\n")
	u, err := s.Read()
	check(t, err)
	if orMinus(u.UserUsec) != 40 || orMinus(u.SystemUsec) != 10 {
		t.Errorf("%s, want user 40 system 10", u)
	}
	for range renewMost - 1 {
		s.Renew()
	}
	if s.Renewable(u) {
		t.Errorf("renewable after %d times", s.Renewals())
	}
}

func TestQuiet(t *testing.T) {
	files := renewableStats()
	if s := fakeStats(t, files); !s.Quiet() {
		t.Error("no process, but not quiet")
	}
	files[StatBoxEvents] = "populated 1\n"
	if s := fakeStats(t, files); s.Quiet() {
		t.Error("quiet beside a process")
	}
	delete(files, StatBoxEvents)
	if s := fakeStats(t, files); s.Quiet() {
		t.Error("quiet without a file that says so")
	}
}
