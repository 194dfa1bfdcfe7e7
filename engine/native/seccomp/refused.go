package seccomp

// refused are calls that the kernel knows and a box has no right to: EPERM.
// Most need a capability that no command has; the filter is the second lock.
var refused = []group{
	{"new namespaces: a nested user namespace gives capabilities over its own mounts and network, which most kernel exploits start with", []call{
		{"unshare", 272, 97},
		{"setns", 308, 268},
	}},
	{"mounts", []call{
		{"mount", 165, 40},
		{"umount2", 166, 39},
		{"pivot_root", 155, 41},
		{"chroot", 161, 51},
		{"move_mount", 429, 429},
		{"open_tree", 428, 428},
		{"open_tree_attr", 467, 467},
		{"fsopen", 430, 430},
		{"fsconfig", 431, 431},
		{"fsmount", 432, 432},
		{"fspick", 433, 433},
		{"mount_setattr", 442, 442},
		{"listns", 470, 470},
	}},
	{"open_by_handle_at opens any file of the file system, past every mount (Shocker)", []call{
		{"open_by_handle_at", 304, 265},
	}},
	{"io_uring does its work out of seccomp's sight", []call{
		{"io_uring_setup", 425, 425},
		{"io_uring_enter", 426, 426},
		{"io_uring_register", 427, 427},
	}},
	{"keyrings are not namespaced", []call{
		{"keyctl", 250, 219},
		{"add_key", 248, 217},
		{"request_key", 249, 218},
	}},
	{"kernel attack surface for which sandboxed programs have no use", []call{
		{"bpf", 321, 280},
		{"perf_event_open", 298, 241},
		{"userfaultfd", 323, 282},
		{"fanotify_init", 300, 262},
		{"lookup_dcookie", 212, 18},
		{"modify_ldt", 154, -1},
		{"iopl", 172, -1},
		{"ioperm", 173, -1},
	}},
	{"loading code into the kernel", []call{
		{"init_module", 175, 105},
		{"finit_module", 313, 273},
		{"delete_module", 176, 106},
		{"kexec_load", 246, 104},
		{"kexec_file_load", 320, 294},
	}},
	{"other processes: needs CAP_SYS_PTRACE or CAP_SYS_NICE beyond one's own", []call{
		{"kcmp", 312, 272},
		{"pidfd_getfd", 438, 438},
		{"process_madvise", 440, 440},
		{"migrate_pages", 256, 238},
		{"move_pages", 279, 239},
	}},
	{"memory placement belongs to the operator", []call{
		{"mbind", 237, 235},
		{"get_mempolicy", 239, 236},
		{"set_mempolicy", 238, 237},
		{"set_mempolicy_home_node", 450, 450},
	}},
	{"state of the machine", []call{
		{"reboot", 169, 142},
		{"swapon", 167, 224},
		{"swapoff", 168, 225},
		{"acct", 163, 89},
		{"quotactl", 179, 60},
		{"quotactl_fd", 443, 443},
		{"syslog", 103, 116},
		{"vhangup", 153, 58},
		{"sethostname", 170, 161},
		{"setdomainname", 171, 162},
		{"nfsservctl", 180, 42},
	}},
	{"clocks", []call{
		{"settimeofday", 164, 170},
		{"clock_settime", 227, 112},
		{"adjtimex", 159, 171},
		{"clock_adjtime", 305, 266},
	}},
	{"security modules", []call{
		{"lsm_get_self_attr", 459, 459},
		{"lsm_set_self_attr", 460, 460},
		{"lsm_list_modules", 461, 461},
	}},
	{"obsolete", []call{
		{"uselib", 134, -1},
		{"ustat", 136, -1},
		{"sysfs", 139, -1},
		{"_sysctl", 156, -1},
	}},
}
