// Threads that the Go runtime makes through cgo get 8 MiB of stack by default, of
// which transparent huge pages would make 2 MiB real at the first touch.
//
// The same would happen to the program's zeroed variables. They span 32 MiB, because
// crypto/internal/fips140/drbg has an array of that size, which is never touched.
//
// And glibc gives each thread that calls malloc(3) an arena of its own: some 64 MiB of address
// space, with page tables. Our C code hardly allocates, so one arena does for all.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

#define THREAD_STACK (256 * 1024)
#define PAGE 4096

extern char __bss_start[], _end[];

__attribute__((constructor)) static void small_memory(void)
{
	mallopt(M_ARENA_MAX, 1);

	uintptr_t bss = (uintptr_t)__bss_start & ~(uintptr_t)(PAGE - 1);

	madvise((void *)bss, (uintptr_t)_end - bss, MADV_NOHUGEPAGE); // fails on kernels without huge pages
	pthread_attr_t attr;

	if (pthread_attr_init(&attr) == 0) {
		if (pthread_attr_setstacksize(&attr, THREAD_STACK) == 0)
			pthread_setattr_default_np(&attr);
		pthread_attr_destroy(&attr);
	}
}
