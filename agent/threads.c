// Threads that the Go runtime makes through cgo get 8 MiB of stack by default, of
// which transparent huge pages would make 2 MiB real at the first touch.
#define _GNU_SOURCE
#include <pthread.h>

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
