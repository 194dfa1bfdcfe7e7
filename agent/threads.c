// What the threads of the Go runtime are given before it makes the first one.
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/prctl.h>

// Threads that it makes through cgo get 8 MiB of stack by default, of which transparent
// huge pages would make 2 MiB real at the first touch.
#define THREAD_STACK (256 * 1024)

__attribute__((constructor)) static void small_stacks(void)
{
	pthread_attr_t attr;

	if (pthread_attr_init(&attr) == 0) {
		if (pthread_attr_setstacksize(&attr, THREAD_STACK) == 0)
			pthread_setattr_default_np(&attr);
		pthread_attr_destroy(&attr);
	}
}

// The monitor of the runtime sleeps for 20 µs at a time whenever something happens, and
// goes on like that for 10 ms while a thread waits in a system call. Each waking costs
// more than what it finds: with 50 managed processes that write a line a second, four fifths of an agent's
// time. With this slack it sleeps as long as it likes in between; nothing
// here needs a finer clock. Threads that give birth to commands have the kernel's own.
#define TIMER_SLACK_NS 2000000UL

__attribute__((constructor)) static void coarse_timers(void)
{
	prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
}
