/* Resolves a name with musl's getaddrinfo and prints the addresses, IPv4 first. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	int families[] = { AF_INET, AF_INET6 };
	for (int i = 0; i < 2; i++) {
		struct addrinfo hints = { .ai_family = families[i], .ai_socktype = SOCK_STREAM }, *found;
		int error = getaddrinfo(argv[argc - 1], "80", &hints, &found);
		if (error) {
			fprintf(stderr, "%s\n", gai_strerror(error));
			return 1;
		}
		for (; found; found = found->ai_next) {
			char text[64];
			if (getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, 0, 0, NI_NUMERICHOST))
				return 1;
			printf("musl %s\n", text);
		}
	}
	return 0;
}
